package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Spec is a program to start.
type Spec struct {
	// Argv holds the program's absolute path first.
	Argv []string
	Env  []string
	// Log takes what it writes; it is appended to, so that a restart keeps the story. Nil throws it away.
	Log *os.File
}

// Start starts the program in a session of its own, in the namespaces of the calling thread.
// The channel gets one value when the program ends while this process still runs.
func Start(s Spec) (Process, <-chan error, error) {
	cmd := exec.Command(s.Argv[0], s.Argv[1:]...)
	cmd.Env = s.Env
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if s.Log != nil {
		cmd.Stdout, cmd.Stderr = s.Log, s.Log
	}
	if err := cmd.Start(); err != nil {
		return Process{}, nil, fmt.Errorf("start %s: %w", s.Argv[0], err)
	}
	// The child cannot be gone for good yet: it is collected below only.
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		return Process{}, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return p, ended, nil
}

// LastLines is the end of a log, for a message about what went wrong.
func LastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
