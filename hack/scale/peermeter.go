package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// counts is what processes have used: CPU time, the programs that they have started, themselves among them, and system calls.
type counts struct{ cpu, programs, calls uint64 }

func (c counts) plus(d counts) counts {
	return counts{c.cpu + d.cpu, c.programs + d.programs, c.calls + d.calls}
}

func (c counts) minus(d counts) counts {
	return counts{c.cpu - d.cpu, c.programs - d.programs, c.calls - d.calls}
}

// meters makes meters: by the kernel's trace points for programs and system calls, which have numbers. host is the node's network namespace.
type meters struct {
	programs, calls uint64
	host            *netns.NS
}

// newMeters reads the trace points' numbers from tracefs, which it mounts in a directory.
func newMeters(dir string) (s meters, err error) {
	if s.host, err = netns.Open("/proc/self/ns/net"); err != nil {
		return s, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s, err
	}
	if err := unix.Mount("tracefs", dir, "tracefs", 0, ""); err != nil {
		return s, fmt.Errorf("mount tracefs: %w", err)
	}
	defer func() { err = errors.Join(err, unbind(dir)) }()
	for name, id := range map[string]*uint64{"sched/sched_process_exec": &s.programs, "raw_syscalls/sys_enter": &s.calls} {
		text, errRead := os.ReadFile(filepath.Join(dir, "events", name, "id"))
		if errRead != nil {
			return s, errRead
		}
		if *id, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return s, err
		}
	}
	return s, nil
}

// meter counts what a process and all its descendants uss.
type meter struct{ fds []int }

// counting starts processes with a function in a network namespace, and counts what they use from then on. The thread ends with the function, so
// nothing else inherits the counters.
func (s meters) counting(in *netns.NS, start func() error) (m meter, err error) {
	err = in.Inside(func() error {
		if err := m.open(s); err != nil {
			return err
		}
		return start()
	})
	if err != nil {
		m.close()
	}
	return m, err
}

// open opens counters, which stand still on the calling thread, and run from the first program that a child becomes.
func (m *meter) open(s meters) error {
	for _, a := range []unix.PerfEventAttr{
		{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK},
		{Type: unix.PERF_TYPE_TRACEPOINT, Config: s.programs},
		{Type: unix.PERF_TYPE_TRACEPOINT, Config: s.calls},
	} {
		a.Size = uint32(unsafe.Sizeof(a))
		a.Bits = unix.PerfBitDisabled | unix.PerfBitInherit | unix.PerfBitEnableOnExec
		fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open a counter: %w", err)
		}
		m.fds = append(m.fds, fd)
	}
	return nil
}

func (m meter) read() (counts, error) {
	var values [3]uint64
	for i, fd := range m.fds {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil {
			return counts{}, fmt.Errorf("read a counter: %w", err)
		}
		values[i] = binary.NativeEndian.Uint64(b[:])
	}
	return counts{values[0], values[1], values[2]}, nil
}

func (m meter) close() {
	for _, fd := range m.fds {
		_ = unix.Close(fd)
	}
}

// milliseconds is the CPU time of each of n.
func (c counts) milliseconds(n int) float64 { return milliseconds(time.Duration(c.cpu)) / float64(n) }
