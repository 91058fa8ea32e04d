package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

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
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read the memory map: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		m, ok := mappingOf(lines.Text())
		if !ok || m.file != program || m.writable {
			continue
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of %s: %w", program, errno)
		}
	}
	return lines.Err()
}

// mapping is a line of /proc/PID/maps (proc_pid_maps(5)).
type mapping struct {
	start, end uintptr
	writable   bool
	file       string
}

func mappingOf(line string) (m mapping, ok bool) {
	words := strings.Fields(line) // addresses, rights, offset, device, inode, path
	if len(words) < 6 || len(words[1]) != 4 {
		return m, false
	}
	_, err := fmt.Sscanf(words[0], "%x-%x", &m.start, &m.end)
	m.writable = words[1][1] == 'w'
	m.file = strings.Join(words[5:], " ")
	return m, err == nil
}
