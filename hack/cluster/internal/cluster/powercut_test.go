package cluster

import (
	"errors"
	"os/exec"
	goruntime "runtime"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
)

// A shell that starts one process after the other. It and they end soon, whatever becomes of the test.
const forks = `i=0; while [ $i -lt 1000 ]; do /bin/sleep 30 & i=$((i+1)); done; wait`

func TestSuspendAll_processesThatStartOthers_leavesNobodyRunning(t *testing.T) {
	goruntime.LockOSThread() // for Pdeathsig, which is about the thread
	defer goruntime.UnlockOSThread()
	cmd := exec.Command("/bin/sh", "-c", forks)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	look := func() ([]int, error) {
		return daemon.Where(func(pid int) bool {
			group, _ := syscall.Getpgid(pid) // a process that has ended has none
			p, _ := daemon.Identify(pid)
			return group == cmd.Process.Pid && p.Alive()
		})
	}
	t.Cleanup(func() {
		if err := killAll(look); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(10 * time.Second); ; {
		if pids, err := look(); err != nil || time.Now().After(deadline) {
			t.Fatal("the shell starts nothing", err)
		} else if len(pids) > 3 {
			break
		}
	}
	number, err := suspendAll(look)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := look()
	if err != nil || len(pids) != number {
		t.Errorf("%d processes are there, of which %d were suspended: %v", len(pids), number, err)
	}
	for _, pid := range pids {
		if daemon.Runs(pid) {
			t.Errorf("process %d runs", pid)
		}
	}
}

func TestSuspendAll_failedLook_isReturned(t *testing.T) {
	broken := errors.New("broken")
	if _, err := suspendAll(func() ([]int, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
