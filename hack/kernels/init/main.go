// Command init is the first process of a virtual machine that runs test programs on another kernel. It lives in the initramfs:
//
//   - loads the modules that the initramfs carries, in the order of /modules
//   - makes the machine's own file tree its root, below a layer of memory, so that programs, checkout and test data are where they always are
//   - runs the programs that job.json of the share "results" lists, one after the other, each with its output in a file there
//   - turns the machine off
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/kernels/job"
)

const (
	results = "/run/results"
	nineP   = "trans=virtio,version=9p2000.L,msize=512000"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	fmt.Fprintln(os.Stderr, "init:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	select {}
}

func run(ctx context.Context) error {
	if err := loadModules(); err != nil {
		return err
	}
	if err := enterTree(); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(results, "job.json"))
	if err != nil {
		return err
	}
	var todo job.Job
	if err := json.Unmarshal(text, &todo); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	if err := prepare(ctx, todo); err != nil {
		return err
	}
	for _, p := range todo.Programs {
		if err := runProgram(ctx, p, todo.Environment); err != nil {
			return err
		}
	}
	return nil
}

// loadModules loads what leads to the host's file tree. Everything else is loaded on demand, by the host's modprobe.
func loadModules() error {
	list, err := os.ReadFile("/modules")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := load(filepath.Join("/", name)); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(file) != ".ko" {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// enterTree makes the host's file tree the root. What is written to it is gone with the machine.
func enterTree() error {
	mounts := []struct{ source, target, kind, options string }{
		{"root", "/lower", "9p", nineP + ",cache=loose"},
		{"memory", "/upper", "tmpfs", "size=75%"},
		{"overlay", "/tree", "overlay", "lowerdir=/lower,upperdir=/upper/written,workdir=/upper/work"},
		{"proc", "/tree/proc", "proc", ""},
		{"sysfs", "/tree/sys", "sysfs", ""},
		{"devtmpfs", "/tree/dev", "devtmpfs", ""},
		{"devpts", "/tree/dev/pts", "devpts", ""},
		{"memory", "/tree/dev/shm", "tmpfs", "mode=1777"},
		{"memory", "/tree/run", "tmpfs", "mode=755"},
		{"cgroup2", "/tree/sys/fs/cgroup", "cgroup2", ""},
		{"results", "/tree" + results, "9p", nineP},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		flags := uintptr(0)
		if m.target == "/lower" {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount(m.source, m.target, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.target, err)
		}
		if m.target == "/upper" {
			if err := errors.Join(os.Mkdir("/upper/written", 0o755), os.Mkdir("/upper/work", 0o755)); err != nil {
				return err
			}
		}
	}
	return errors.Join(os.Chdir("/tree"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/"))
}

// prepare gives programs what a booted machine has.
func prepare(ctx context.Context, todo job.Job) error {
	if err := errors.Join(os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/tmp", 0o755)); err != nil {
		return err
	}
	if todo.Modules != "" {
		modules := filepath.Join("/lib/modules", filepath.Base(todo.Modules))
		if err := errors.Join(os.RemoveAll(modules), os.MkdirAll("/lib/modules", 0o755), os.Symlink(todo.Modules, modules)); err != nil {
			return err
		}
	}
	if todo.Checkout != "" {
		err := errors.Join(os.MkdirAll(todo.Checkout, 0o755), unix.Mount("checkout", todo.Checkout, "9p", unix.MS_RDONLY, nineP+",cache=loose"))
		if err != nil {
			return fmt.Errorf("mount the checkout at %s: %w", todo.Checkout, err)
		}
	}
	command := exec.CommandContext(ctx, "/sbin/ip", "link", "set", "lo", "up")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// runProgram writes a program's output and its exit code. A program that cannot start has exit code -1 and says why.
func runProgram(ctx context.Context, p job.Program, environment []string) error {
	out, err := os.Create(filepath.Join(results, p.Name+".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	command := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	command.Dir, command.Env, command.Stdout, command.Stderr = p.Directory, environment, out, out
	command.WaitDelay = time.Second
	began := time.Now()
	if err := command.Run(); err != nil {
		fmt.Fprintln(out, err)
	}
	code := command.ProcessState.ExitCode()
	fmt.Fprintf(os.Stderr, "%s: exit code %d after %.0f s\n", p.Name, code, time.Since(began).Seconds())
	return os.WriteFile(filepath.Join(results, p.Name+".code"), []byte(strconv.Itoa(code)), 0o600)
}
