package agent

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// taking is an entrance that an agent takes when it may.
type taking struct {
	*doorway
	taken chan struct{} // closed when it serves
	stop  func()        // returns when it serves no more
}

func take(t *testing.T, socket string, core *coreHolder) taking {
	t.Helper()
	out := taking{doorway: newDoorway(socket, core), taken: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	run := out.once(func(ctx context.Context) error { close(out.taken); <-ctx.Done(); return nil })
	go func() { done <- run(ctx) }()
	stopped := false
	out.stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(out.stop)
	return out
}

func (e taking) wantTaken(t *testing.T, when string) {
	t.Helper()
	select {
	case <-e.taken:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: it does not serve", when)
	}
	if err := e.check(passing)(t.Context()); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// wantWaiting wants the agent to have looked for another one several times, and to say why it waits.
func (e taking) wantWaiting(t *testing.T, when string) {
	t.Helper()
	select {
	case <-e.taken:
		t.Fatalf("%s: it serves", when)
	case <-time.After(3 * doorwayPoll):
	}
	err := e.check(passing)(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another agent of this node serves; this one takes over when it has read its pods: the agent cannot reach") {
		t.Errorf("%s: ready %v", when, err)
	}
}

func passing(context.Context) error { return nil }

func filledCore() *coreHolder {
	h := &coreHolder{}
	h.set(core{})
	return h
}

func TestDoorway_noOtherAgent_servesAtOnce(t *testing.T) {
	take(t, filepath.Join(t.TempDir(), "s"), &coreHolder{}).wantTaken(t, "alone")
	take(t, filepath.Join(t.TempDir(), "no", "s"), &coreHolder{}).wantTaken(t, "without the directory")
}

func TestDoorway_anotherServes_waitsUntilItsPodsAreRead(t *testing.T) {
	socket, mine := filepath.Join(t.TempDir(), "s"), &coreHolder{}
	take(t, socket, filledCore()).wantTaken(t, "the predecessor")
	e := take(t, socket, mine)
	e.wantWaiting(t, "before it has read its pods")
	mine.set(core{})
	e.wantTaken(t, "with its pods")
}

func TestDoorway_theOtherEnds_servesWithoutItsPods(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	predecessor := take(t, socket, &coreHolder{})
	predecessor.wantTaken(t, "the predecessor, which refuses")
	e := take(t, socket, &coreHolder{})
	e.wantWaiting(t, "beside the predecessor")
	predecessor.stop()
	e.wantTaken(t, "alone")
}

// The end of the first of two that serve must not make the third one serve.
func TestDoorway_oneOfTwoOthersEnds_goesOnWaiting(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first := take(t, socket, filledCore())
	first.wantTaken(t, "the first")
	second := take(t, socket, filledCore())
	second.wantTaken(t, "the second")
	third := take(t, socket, &coreHolder{})
	third.wantWaiting(t, "beside two")
	first.stop()
	third.wantWaiting(t, "beside one")
	second.stop()
	third.wantTaken(t, "alone")
}

// The kernel frees what a killed agent held.
func TestDoorway_theOtherIsKilled_serves(t *testing.T) {
	dir := t.TempDir()
	other := exec.CommandContext(t.Context(), "flock", "--shared", "--close", dir, "cat")
	input, err := other.StdinPipe() // cat ends with it
	if err != nil {
		t.Fatal(err)
	}
	output, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := input.Write([]byte{'\n'}); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil { // the lock is held
		t.Fatal(err)
	}
	e := take(t, filepath.Join(dir, "s"), &coreHolder{})
	e.wantWaiting(t, "beside another process")
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	e.wantTaken(t, "after its death")
	_ = input.Close()
	_ = other.Wait()
}

func TestDoorway_theEndOfTheAgent_endsTheWait(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	take(t, socket, &coreHolder{}).wantTaken(t, "the predecessor")
	e := take(t, socket, &coreHolder{})
	e.wantWaiting(t, "beside the predecessor")
	e.stop()
	if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
