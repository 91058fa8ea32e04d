// Package job is what the host gives the first process of a virtual machine to do.
package job

import "time"

// Job is the file job.json of the share "results".
type Job struct {
	// Environment is the same for all programs.
	Environment []string
	// Modules is the directory of the kernel's modules, Checkout the share of this name and where it is mounted. They are empty if the
	// root has them.
	Modules, Checkout string
	Programs          []Program
}

// Program is a test program, or a script.
type Program struct {
	Name      string
	Directory string
	Command   []string
	Limit     time.Duration
}
