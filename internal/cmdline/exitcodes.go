package cmdline

import "fmt"

// Exit codes other than 0. docs/commands.md says what they mean, as a test checks.
const (
	ExitError   = 1 // an error; `status`: something does not have what it asks for
	ExitUnasked = 2 // `status`: the cluster could not be asked, or not about all that was asked for; so it is with a wrong flag
	ExitDrift   = 3 // `rules verify`, `inspect`: the rules differ from what the pod asks for, or foreign chains see packets before them; `inspect`: or the rules are not known
)

// ExitCode ends a command with an exit code. What there is to say has been said.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Unasked marks an error of a command that could not ask the cluster.
func Unasked(err error) error { return unaskedError{err} }

type unaskedError struct{ error }

func (e unaskedError) Unwrap() error { return e.error }
