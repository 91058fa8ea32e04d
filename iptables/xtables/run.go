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

// lockFile is what iptables-legacy locks where nothing else is said.
const lockFile = "/run/xtables.lock"

// run starts a program in the network namespace of the calling thread, which a process inherits, and gives what it printed.
// Files in memory instead of pipes: the program has its whole input whatever becomes of us.
func (b *Backend) run(ctx context.Context, input, program string, args ...string) (output string, err error) {
	defer func(start time.Time) { b.observe(filepath.Base(program), time.Since(start)) }(time.Now())
	cmd := exec.CommandContext(ctx, program, args...)
	// Nobody writes rules for an agent that is gone: its successor may be at work already.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = b.environ
	files, err := memoryFiles(3)
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
	err = cmd.Run()
	stdout, errOut := content(files[1])
	stderr, errErr := content(files[2])
	if errRead := errors.Join(errOut, errErr); errRead != nil {
		return "", fmt.Errorf("read output: %w", errRead)
	}
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", filepath.Base(program), ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%s: %w%s", filepath.Base(program), err, refusal(stderr, input))
	}
	return stdout, nil
}

func memoryFiles(n int) ([]*os.File, error) {
	var files []*os.File
	for range n {
		fd, err := unix.MemfdCreate("xtables", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("make file in memory: %w", err)
		}
		files = append(files, os.NewFile(uintptr(fd), "xtables"))
	}
	return files, nil
}

func content(f *os.File) (string, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	return string(data), err
}

// refusal is what a restore program has to say, and what stands in the line that it speaks of: the rule that was refused.
// Where that is COMMIT, the kernel refused the table.
func refusal(stderr, input string) string {
	var said []string
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "Try `") {
			said = append(said, line)
		}
	}
	// The last lines tell; what is in front are warnings.
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

// environ is the environment of programs. Where the usual lock cannot be had, as on a read-only root file system,
// iptables-legacy locks its own input, which keeps nobody apart: the Backend locks the namespace itself.
func environ(lock string) (env []string, own bool) {
	env = os.Environ()
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDONLY, 0o600) //nolint:gosec // the lock of iptables-legacy
	if err == nil {
		err = f.Close()
	}
	if err != nil && os.Getenv("XTABLES_LOCKFILE") == "" {
		return append(env, "XTABLES_LOCKFILE=/proc/self/fd/0"), true
	}
	return env, false
}
