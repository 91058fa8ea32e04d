package cli

import "fmt"

// Exit codes other than 0. docs/commands.md says what they mean, as a test checks.
const (
	exitError   = 1 // an error; `status`: something does not have what it asks for
	exitUnasked = 2 // `status`, `version --agents`: the cluster could not be asked, or not about all that was asked for; `status`: so it is with a wrong flag
	exitDrift   = 3 // `rules verify`, `inspect`: the rules differ from what the pod asks for, or foreign chains see packets before them; `inspect`: or the rules are not known
)

// exitCode ends a command with an exit code. What there is to say has been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// unaskedError is the error of a command that could not ask the cluster.
type unaskedError struct{ error }

func (e unaskedError) Unwrap() error { return e.error }
