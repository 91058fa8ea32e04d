package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

// taking is a hook that an agent takes when it may.
type taking struct {
	*doorway
	serves *atomic.Bool
	stop   func() // returns when it serves no more
}

func take(t *testing.T, socket string, core *coreHolder) taking {
	t.Helper()
	return takeAfter(t, socket, core, func() {})
}

// takeAfter is take for a hook that serves only when connect has returned.
func takeAfter(t *testing.T, socket string, core *coreHolder, connect func()) taking {
	t.Helper()
	serves := &atomic.Bool{}
	out := taking{doorway: newDoorway(socket, core, serves.Load), serves: serves}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	run := out.guard(func(ctx context.Context) error {
		connect()
		out.serves.Store(true)
		defer out.serves.Store(false)
		<-ctx.Done()
		return nil
	})
	go func() { done <- run(ctx) }()
	out.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(out.stop)
	return out
}

func (e taking) wantTaken(t *testing.T, when string) {
	t.Helper()
	eventuallyNil(t, func() error {
		if !e.serves.Load() {
			return fmt.Errorf("%s: it does not serve", when)
		}
		return nil
	})
	if err := e.check(passing)(t.Context()); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// wantLocked wants the agent to hold its lock, which it may get a moment after it serves.
func (e taking) wantLocked(t *testing.T, when string) {
	t.Helper()
	e.wantTaken(t, when)
	eventuallyNil(t, func() error {
		if !e.othersServe() {
			return fmt.Errorf("%s: it holds no lock", when)
		}
		return nil
	})
}

// wantWaiting wants the agent to have looked for another one several times, and to say why it waits.
func (e taking) wantWaiting(t *testing.T, when string) {
	t.Helper()
	eventuallyNil(t, func() error {
		if e.serves.Load() || !e.waiting.Load() {
			return fmt.Errorf("%s: it serves", when)
		}
		return nil
	})
	<-time.After(3 * doorwayPoll)
	if e.serves.Load() {
		t.Errorf("%s: it serves again", when)
	}
	err := e.check(passing)(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another agent of this node serves; this one takes over when it has read its pods: "+podnet.ErrPodsUnknown.Error()) {
		t.Errorf("%s: ready %v", when, err)
	}
}

func passing(context.Context) error { return nil }

func filledCore() *coreHolder {
	h := newCoreHolder()
	h.set(core{})
	return h
}

func TestDoorway_noOtherAgent_servesAtOnce(t *testing.T) {
	take(t, filepath.Join(t.TempDir(), "s"), newCoreHolder()).wantTaken(t, "alone")
	take(t, filepath.Join(t.TempDir(), "no", "s"), newCoreHolder()).wantTaken(t, "without the directory")
}

func TestDoorway_anotherServes_waitsUntilItsPodsAreRead(t *testing.T) {
	socket, mine := filepath.Join(t.TempDir(), "s"), newCoreHolder()
	take(t, socket, filledCore()).wantLocked(t, "the predecessor")
	e := take(t, socket, mine)
	e.wantWaiting(t, "before it has read its pods")
	mine.set(core{})
	e.wantTaken(t, "with its pods")
}

// With no agent connected, a call of the runtime that is under way would let its pod start without rules.
func TestDoorway_agentWithItsPodsIsNotConnectedYet_theOtherServesUntilThen(t *testing.T) {
	socket, connect := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	other := take(t, socket, newCoreHolder())
	other.wantTaken(t, "alone")
	e := takeAfter(t, socket, filledCore(), func() {
		select {
		case <-connect:
		case <-t.Context().Done():
		}
	})
	<-time.After(3 * doorwayPoll)
	other.wantTaken(t, "beside one that is not connected")
	close(connect)
	e.wantLocked(t, "once it is connected")
	other.wantWaiting(t, "beside one that is connected")
}

// A release that cannot read its pods must not refuse containers beside the agent that comes back after a crash.
func TestDoorway_predecessorComesBackWithItsPods_servesNoMore(t *testing.T) {
	socket, mine := filepath.Join(t.TempDir(), "s"), newCoreHolder()
	predecessor := take(t, socket, filledCore())
	predecessor.wantLocked(t, "the predecessor")
	e := take(t, socket, mine)
	e.wantWaiting(t, "beside the predecessor")
	predecessor.stop()
	e.wantTaken(t, "alone")
	predecessor = take(t, socket, filledCore())
	predecessor.wantLocked(t, "the predecessor again")
	e.wantWaiting(t, "beside the predecessor again")
	mine.set(core{})
	e.wantLocked(t, "with its pods")
	predecessor.stop()
	e.wantTaken(t, "alone again")
}

func TestDoorway_noAgentHasItsPods_allServeUntilOneHas(t *testing.T) {
	socket, second := filepath.Join(t.TempDir(), "s"), newCoreHolder()
	one, other := take(t, socket, newCoreHolder()), take(t, socket, second)
	one.wantTaken(t, "one")
	other.wantTaken(t, "the other")
	second.set(core{})
	one.wantWaiting(t, "once the other has its pods")
	other.wantTaken(t, "with its pods")
}

// A lock that fails once, as a look of another agent makes it fail, must not leave an agent unseen.
func TestDoorway_lockTakenAtFirst_isHeldLater(t *testing.T) {
	dir := t.TempDir()
	look, err := (&doorway{dir: dir}).lock(unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	e := take(t, filepath.Join(dir, "s"), filledCore())
	e.wantTaken(t, "during a look")
	if err := look.Close(); err != nil {
		t.Fatal(err)
	}
	e.wantLocked(t, "after the look")
}

func TestDoorway_directoryMadeLater_isSeenByOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nri")
	socket := filepath.Join(dir, "s")
	e, other := take(t, socket, filledCore()), take(t, socket, newCoreHolder())
	e.wantTaken(t, "without the directory")
	other.wantTaken(t, "without the directory")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other.wantWaiting(t, "once the other one is seen")
	e.wantTaken(t, "as before")
}

// The end of the first of two that serve must not make the third one serve.
func TestDoorway_oneOfTwoOthersEnds_goesOnWaiting(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first := take(t, socket, filledCore())
	first.wantLocked(t, "the first")
	second := take(t, socket, filledCore())
	second.wantTaken(t, "the second")
	third := take(t, socket, newCoreHolder())
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
	e := take(t, filepath.Join(dir, "s"), newCoreHolder())
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
	take(t, socket, filledCore()).wantLocked(t, "the predecessor")
	e := take(t, socket, newCoreHolder())
	e.wantWaiting(t, "beside the predecessor")
	e.stop()
	if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// One agent's looks, of a hook and of what was kept, are not taken for another agent.
func TestDoorway_looksAtOnce_seeNoOtherAgent(t *testing.T) {
	d := newDoorway(filepath.Join(t.TempDir(), "hook.sock"), newCoreHolder(), func() bool { return false })
	var mistaken atomic.Int32
	var looking sync.WaitGroup
	for range 8 {
		looking.Go(func() {
			for range 500 {
				if d.othersServe() {
					mistaken.Add(1)
				}
			}
		})
	}
	if looking.Wait(); mistaken.Load() > 0 {
		t.Errorf("%d of 4000 looks saw another agent", mistaken.Load())
	}
}
