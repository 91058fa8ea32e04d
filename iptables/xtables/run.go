package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is what iptables-legacy locks by default.
const lockFile = "/run/xtables.lock"

const (
	// processTimeout bounds a program's time; the caller's context may be shorter.
	processTimeout = 20 * time.Second
	// maxOutput bounds a program's output: a hundred times what our own rules take.
	maxOutput = 8 << 20
	// maxData bounds a program's memory: a hundred times what our own rules need.
	maxData = 64 << 20
	// pageSize: a write that passes a limit may end up to a page before it.
	pageSize = 1 << 12
)

// ErrUnusable means that the programs cannot read or change the tables of a namespace: a pod has written what they do not understand, or
// more than is read, or one of its processes owns a table. The nftables backend does without these tables.
var ErrUnusable = errors.New("iptables cannot use the tables")

// errTooMuch means that a namespace holds more rules than we read; iptables-save always prints all.
var errTooMuch = errors.New("the tables hold more than can be read")

// programs are the programs of one flavour. They run in the network namespace of the calling thread.
type programs struct {
	flavour Flavour
	tools   map[uint32]tools // by family
	missing error
	environ []string
	observe func(program string, took time.Duration)
}

// restore gives a family's restore program its input. If that is empty, there is nothing to do.
func (p programs) restore(ctx context.Context, family uint32, input string) error {
	if input == "" {
		return nil
	}
	_, err := p.run(ctx, input, p.tools[family].restore, "--noflush", "-w", strconv.Itoa(lockSeconds))
	if err != nil && ctx.Err() == nil && !passes(err) && !lacks(err) {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return err
}

// passes reports whether a program failed for a reason that is not in the namespace: it did not start, or was killed. A pod can make it crash
// and use up its limits.
func passes(err error) bool {
	if errors.Is(err, errTooMuch) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	if !ended {
		return true
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// lacks reports whether a restore program got no memory from the kernel, or no lock. No pod has written what it says: its input is ours.
func lacks(err error) bool {
	return strings.Contains(err.Error(), "(Cannot allocate memory)") || strings.Contains(err.Error(), "holding the xtables lock")
}

// save returns all rules of a family. It starts no process for a family without tables of ours.
func (p programs) save(ctx context.Context, family uint32, counters bool) (string, error) {
	has, err := p.hasTables(family)
	if err != nil || !has {
		return "", err
	}
	var args []string
	if counters {
		args = append(args, "-c")
	}
	saved, err := p.run(ctx, "", p.tools[family].save, args...)
	if err != nil && ctx.Err() == nil && !passes(err) {
		return "", fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	// Rules that cannot be read would be written again each time.
	if m := regexp.MustCompile("Table `(raw|mangle|nat)' is incompatible").FindStringSubmatch(saved); m != nil {
		return "", fmt.Errorf("%w: %s cannot read table %s: it holds what only nft understands", ErrUnusable, filepath.Base(p.tools[family].save), m[1])
	}
	return saved, err
}

// hasTables reports whether a family has any table of the flavour. Asking makes none.
func (p programs) hasTables(family uint32) (bool, error) {
	if p.flavour == Legacy {
		return len(legacyTables(ownProc, family)) > 0, nil
	}
	return haveTable(family)
}

// run starts a program and returns its output. It uses files in memory instead of pipes: so the program has its whole input even if
// the agent dies. The program's output and memory are bounded, since it also prints the pod's own rules.
func (p programs) run(ctx context.Context, input, program string, args ...string) (output string, err error) {
	defer func(start time.Time) { p.observe(filepath.Base(program), time.Since(start)) }(time.Now())
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	// The program is killed if the agent dies: the next agent may work already.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = p.environ
	files, err := memoryFiles(int64(len(input)), maxOutput, maxOutput)
	if err != nil {
		return "", err
	}
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := files[0].WriteAt([]byte(input), 0); err != nil {
		return "", fmt.Errorf("write input: %w", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	err = runWithin(cmd, maxData)
	stdout, errOut := content(files[1])
	stderr, errErr := content(files[2])
	name := filepath.Base(program)
	switch errRead := errors.Join(errOut, errErr); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", name, ctx.Err())
	case errRead != nil:
		return "", fmt.Errorf("%s: %w", name, errRead)
	case err != nil:
		return "", fmt.Errorf("%s: %w%s", name, err, refusal(stderr, input))
	}
	return stdout, nil
}

// runWithin runs a program and limits the memory that it may allocate.
func runWithin(cmd *exec.Cmd, bytes uint64) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	limit := &unix.Rlimit{Cur: bytes, Max: bytes}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_DATA, limit, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return errors.Join(fmt.Errorf("limit its memory: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Wait()
}

// memoryFiles returns files of fixed sizes in memory.
func memoryFiles(sizes ...int64) ([]*os.File, error) {
	var files []*os.File
	for _, size := range sizes {
		fd, err := unix.MemfdCreate("xtables", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return nil, fmt.Errorf("make file in memory: %w", err)
		}
		f := os.NewFile(uintptr(fd), "xtables")
		files = append(files, f)
		if err := f.Truncate(size); err != nil {
			return nil, fmt.Errorf("make file in memory: %w", err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
			return nil, fmt.Errorf("limit file in memory: %w", err)
		}
	}
	return files, nil
}

// content returns what a program has written: up to the file position, which it shares with us.
func content(f *os.File) (string, error) {
	end, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", fmt.Errorf("read output: %w", err)
	}
	if end > maxOutput-pageSize {
		return "", errTooMuch
	}
	data := make([]byte, end)
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read output: %w", err)
	}
	return string(data), nil
}

// refusal returns the error text of a restore program, and the line of the input that it names: the rule that was refused. If that is
// COMMIT, the kernel has refused the table.
func refusal(stderr, input string) string {
	var said []string
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "Try `") {
			said = append(said, line)
		}
	}
	// The last lines are the error; the ones before are warnings.
	text := ": " + strings.Join(said[max(0, len(said)-2):], "; ")
	m := regexp.MustCompile(`line:? (\d+)`).FindStringSubmatch(text)
	if m == nil {
		return text
	}
	lines := strings.Split(input, "\n")
	n, err := strconv.Atoi(m[1])
	if err != nil || n < 1 || n > len(lines) {
		return text
	}
	name := ""
	for _, l := range lines[:n] {
		if strings.HasPrefix(l, "*") {
			name = l[1:]
		}
	}
	return fmt.Sprintf("%s; refused in table %s: %s", text, name, lines[n-1])
}

// environ returns the environment of programs. If the usual lock cannot be used, as on a read-only root file system, iptables-legacy is
// made to lock its own input, which has no effect: the Backend locks the namespace itself.
func environ(lock string) []string {
	env := os.Environ()
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && os.Getenv("XTABLES_LOCKFILE") == "" {
		return append(env, "XTABLES_LOCKFILE=/proc/self/fd/0")
	}
	return env
}
