package sidecar

// Application is a container of a pod's spec.
type Application struct {
	ID, Name string
	// Attempt is the runtime's number of the container among those of its name: a higher one is newer.
	Attempt uint32
	State   State
	// ExitCode is that of one that has exited.
	ExitCode int32
}
