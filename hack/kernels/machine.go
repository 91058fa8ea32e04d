package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"istio-pod-network-controller/hack/kernels/job"
)

// Machine is a virtual machine that runs a job on a kernel, and then turns itself off. It needs no KVM.
type Machine struct {
	Kernel Kernel
	// Init is the program of ./init.
	Init string
	// Results is a directory of the host: the job is in it, and what the programs say.
	Results string
	Console io.Writer
	// Memory is in MiB.
	Memory int
	// Append are more words for the kernel's command line.
	Append string
}

// line is the kernel's command line. The machine is short-lived: no mitigations, and a panic ends it.
const line = "quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on"

// Run boots the machine and waits until it is off. The results of an earlier run go first.
func (m Machine) Run(ctx context.Context, todo job.Job) error {
	if err := errors.Join(os.RemoveAll(m.Results), os.MkdirAll(m.Results, 0o755)); err != nil {
		return err
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return err
	}
	initramfs := filepath.Join(m.Results, "initramfs")
	if err := errors.Join(os.WriteFile(filepath.Join(m.Results, "job.json"), text, 0o600), m.writeInitramfs(ctx, initramfs)); err != nil {
		return err
	}
	accelerator := os.Getenv("ACCEL")
	if accelerator == "" || m.Kernel.Programs != "" {
		accelerator = "tcg"
	}
	share := "local,security_model=none,multidevs=remap,"
	cmd := exec.CommandContext(ctx, m.Kernel.QEMU[0], m.Kernel.QEMU[1:]...)
	cmd.Args = append(cmd.Args, "-accel", accelerator,
		"-smp", "1", "-m", strconv.Itoa(m.Memory), "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-virtfs", share+"mount_tag=root,readonly=on,path="+m.Kernel.Tree(), "-virtfs", share+"mount_tag=results,path="+m.Results,
		"-kernel", m.Kernel.Image(), "-initrd", initramfs, "-append", "console="+m.Kernel.Console+" "+line+" "+m.Append)
	if todo.Checkout != "" {
		cmd.Args = append(cmd.Args, "-virtfs", share+"mount_tag=checkout,readonly=on,path="+todo.Checkout)
	}
	if accelerator == "tcg" {
		// The machine's clock counts instructions, a nanosecond each: on a slow or busy host everything takes longer, and nothing in the machine
		// notices, so that time limits hold that were made for real machines.
		cmd.Args = append(cmd.Args, "-icount", "shift=0", "-rtc", "clock=vm")
	}
	cmd.Stdout, cmd.Stderr = m.Console, m.Console
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w", cmd.Args[0], err)
	}
	return nil
}

// pack writes ./init, the modules that it loads, and their order, in the format of cpio that the kernel reads.
const pack = `set -o pipefail; mkdir tree && cd tree && cp -- "$0" init && cp -- "${@:2}" . && printf '%s\n' "${@##*/}" | tail -n +2 >modules &&
	ls | busybox cpio -o -H newc >"$1"`

func (m Machine) writeInitramfs(ctx context.Context, file string) error {
	modules, err := m.modules(ctx)
	if err != nil {
		return err
	}
	_, err = output(ctx, m.Results, "bash", append([]string{"-c", pack, m.Init, file}, modules...)...)
	return err
}

// modules lists the files of what leads to the host's file tree, each behind what it needs.
func (m Machine) modules(ctx context.Context) (files []string, err error) {
	seen := map[string]bool{}
	for _, name := range []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"} {
		out, err := output(ctx, m.Results, "/sbin/modprobe", "-d", m.Kernel.Directory, "-S", m.Kernel.Release, "--show-depends", name)
		if err != nil {
			return nil, err
		}
		for text := range strings.Lines(out) { // insmod FILE, or builtin NAME
			fields := strings.Fields(text)
			if len(fields) > 1 && fields[0] == "insmod" && !seen[fields[1]] {
				seen[fields[1]] = true
				files = append(files, fields[1])
			}
		}
	}
	return files, nil
}

// exitCode is what a program ended with; an error says that it did not.
func (m Machine) exitCode(program string) (int, error) {
	text, err := os.ReadFile(filepath.Join(m.Results, program+".code"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}
