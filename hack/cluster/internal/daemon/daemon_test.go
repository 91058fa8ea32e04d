package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStopKillsWhatIgnoresTheSignal(t *testing.T) {
	log := logFile(t)
	p, ended, err := Start(Spec{Argv: []string{"/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); !strings.Contains(LastLines(log.Name(), 1), "ready"); {
		if time.Now().After(deadline) {
			t.Fatal("the shell did not come up")
		}
	}
	if err := p.Stop(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a process that was signalled reports an orderly end")
	}
	if p.Alive() {
		t.Error("alive after Stop")
	}
}

func TestAnotherProcessWithTheSameIDIsNotTheOne(t *testing.T) {
	p, ended := start(t, "/bin/sleep", "60")
	other := Process{PID: p.PID, Started: p.Started + 1}
	if other.Alive() {
		t.Error("a process with another start time counts as alive")
	}
	if err := other.Stop(time.Second); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Error("Stop of another life ended this one")
	}
	if err := p.Stop(time.Second); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a process that was signalled reports an orderly end")
	}
}

func TestEndIsReportedAndTheLogKept(t *testing.T) {
	log := logFile(t)
	_, ended, err := Start(Spec{Argv: []string{"/bin/sh", "-c", "echo one; echo two; exit 3"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("end reported as %v", err)
	}
	if got := LastLines(log.Name(), 1); got != "two" {
		t.Errorf("last line %q", got)
	}
}

func start(t *testing.T, argv ...string) (Process, <-chan error) {
	t.Helper()
	p, ended, err := Start(Spec{Argv: argv})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(0) })
	return p, ended
}

func logFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
