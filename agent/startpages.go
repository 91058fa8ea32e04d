package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"
)

// startPagesKept is how long the agent, once its caches are filled, keeps what only its start needs. It has looked at its pods by then.
const startPagesKept = 10 * time.Second

// releaseStartPages gives memory back once that only the start needed: garbage, and pages of the program. Most of the program is never used
// again after the types and API groups of Kubernetes are registered. What is still needed comes back from the page cache as it is used.
func releaseStartPages(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(startPagesKept):
	}
	debug.FreeOSMemory()
	if err := releaseProgram(); err != nil {
		ctrl.LoggerFrom(ctx).Info("memory of the start is not given back", "reason", err.Error())
	}
	return nil
}

// releaseProgram unmaps the pages of this process's program that nobody can have written to (MADV_DONTNEED of madvise(2)).
func releaseProgram() error {
	self, err := procfs.Self()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	program, err := self.Executable()
	mapped, errMapped := self.ProcMaps()
	if err := errors.Join(err, errMapped); err != nil {
		return fmt.Errorf("read the memory map: %w", err)
	}
	for _, m := range mapped {
		if m.Pathname != program || m.Perms.Write {
			continue
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of %s: %w", program, errno)
		}
	}
	return nil
}
