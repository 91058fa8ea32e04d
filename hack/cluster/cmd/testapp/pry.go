package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// pried is what a hostile process gets at.
type pried struct {
	Processes []process `json:"processes"`
	// Sockets are the unix sockets of the network namespace, "@" in front of abstract ones, and Reached those that took a connection.
	Sockets []string `json:"sockets"`
	Reached []string `json:"reached"`
}

// process is one that exists for the caller, and Ways are those in which it can be got at.
type process struct {
	PID  int      `json:"pid"`
	Name string   `json:"name"`
	Ways []string `json:"ways"`
}

// pry tries every process ID up to a number, and every unix socket of the network namespace. Threads count as processes.
func pry(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("pry", flag.ContinueOnError)
	flags.SetOutput(progress)
	last := flags.Int("max", 1<<16, "the highest process ID to try")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var f pried
	for pid := 1; pid <= *last && ctx.Err() == nil; pid++ {
		if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may be hidden
		f.Processes = append(f.Processes, process{PID: pid, Name: strings.TrimSpace(string(name)), Ways: waysTo(pid)})
	}
	var err error
	if f.Sockets, err = unixSockets(); err != nil {
		return err
	}
	for _, address := range f.Sockets {
		for _, network := range []string{"unix", "unixgram", "unixpacket"} {
			if conn, err := new(net.Dialer).DialContext(ctx, network, address); err == nil {
				f.Reached = append(f.Reached, address)
				_ = conn.Close()
				break
			}
		}
	}
	return json.NewEncoder(out).Encode(f)
}

// waysTo returns the ways in which a process can be signalled, traced and read.
func waysTo(pid int) (ways []string) {
	var b [8]byte
	base := fmt.Sprintf("/proc/%d/", pid)
	for _, way := range []struct {
		name string
		try  func() error
	}{
		{"signal", func() error { return unix.Kill(pid, 0) }},
		{"ptrace", func() error { return trace(pid) }},
		{"process_vm_readv", func() error {
			local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
			_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: mapped(base), Len: len(b)}}, 0)
			return err
		}},
		{"mem", func() error {
			f, err := os.Open(base + "mem")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.ReadAt(b[:], int64(mapped(base)))
			return err
		}},
		{"root", func() error { _, err := os.ReadDir(base + "root/"); return err }},
		{"fd", func() error { _, err := os.ReadDir(base + "fd"); return err }},
		{"environ", func() error { _, err := os.ReadFile(base + "environ"); return err }},
	} {
		if way.try() == nil {
			ways = append(ways, way.name)
		}
	}
	return ways
}

// trace attaches to a process, and lets it go: on one thread, by which the kernel knows a tracer.
func trace(pid int) error {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	_, errWait := unix.Wait4(pid, nil, unix.WALL, nil)
	return errors.Join(errWait, unix.PtraceDetach(pid))
}

// mapped returns the first address that a process has mapped, or one where programs usually are.
func mapped(base string) uintptr {
	const usual = 0x400000
	text, err := os.ReadFile(base + "maps")
	var first uintptr
	if err != nil {
		return usual
	}
	if _, err := fmt.Sscanf(string(text), "%x-", &first); err != nil {
		return usual
	}
	return first
}

// unixSockets returns the names of the network namespace's unix sockets.
func unixSockets() (names []string, err error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const nameField = 7
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > nameField && fields[nameField] != "Path" {
			names = append(names, fields[nameField])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
