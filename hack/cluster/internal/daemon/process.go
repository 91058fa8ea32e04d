// Package daemon starts processes that outlive the command that starts them, and finds and ends them again.
package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// poll is how often a process is looked at that somebody waits for.
const poll = 20 * time.Millisecond

// Process is one process for good: a process id may be used again, together with the time of its start it is not.
type Process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"`
}

// Identify names the process that has the id now.
func Identify(pid int) (Process, error) {
	_, started, err := stat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Started: started}, nil
}

// Alive says whether the process still runs. One that has ended and waits for its parent does not.
func (p Process) Alive() bool {
	state, started, err := stat(p.PID)
	return err == nil && started == p.Started && state != "Z" && state != "X"
}

// Stop asks the process to end and kills it when it has not after grace. Not running is success.
func (p Process) Stop(grace time.Duration) error {
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, 5 * time.Second}} {
		if step.wait == 0 {
			continue
		}
		if !p.Alive() {
			return nil
		}
		if err := unix.Kill(p.PID, step.signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("send %s to process %d: %w", unix.SignalName(step.signal), p.PID, err)
		}
		if p.waitGone(step.wait) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not end", p.PID)
}

// waitGone polls, because the process has no parent here any more once the command that started it has ended.
func (p Process) waitGone(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(poll) {
		if !p.Alive() {
			return true
		}
	}
	return !p.Alive()
}

// Where lists the processes that a test is true for.
func Where(test func(pid int) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && test(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// NamespaceID is what /proc shows for one namespace of a process.
func NamespaceID(pid int, kind string) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
}

// Runs reports whether a process is on a processor or waits for one.
func Runs(pid int) bool {
	state, _, err := stat(pid)
	return err == nil && state == "R"
}

// stat reads the state and the start time. The command's name, which may hold anything, ends at the last parenthesis.
func stat(pid int) (state string, started uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "", 0, fmt.Errorf("cannot read %q", text)
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], started, err
}
