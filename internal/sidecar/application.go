package sidecar

// Application is a container of a pod's own.
type Application struct {
	ID, Name string
	// Attempt counts the containers of the name.
	Attempt uint32
	State   State
	// ExitCode is that of one that has exited.
	ExitCode int32
}
