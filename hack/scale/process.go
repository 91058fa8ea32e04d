package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopPatience is how long a process may take to end before it is killed.
const stopPatience = 20 * time.Second

// process is a child of this program. It dies with it, see alone.
type process struct {
	cmd *exec.Cmd
	log *os.File
}

// start runs a program, whose output goes to DIR/NAME.log.
func start(dir, name string, env []string, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	return &process{cmd: cmd, log: log}, nil
}

// stop ends the process with a signal, and kills it if it does not end.
func (p *process) stop(with os.Signal) error {
	if p == nil || p.cmd.ProcessState != nil {
		return nil
	}
	if err := p.cmd.Process.Signal(with); err != nil {
		return err
	}
	kill := time.AfterFunc(stopPatience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // says how it ended
	return p.log.Close()
}

// kill ends the process and its children at once.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Wait() // says how it ended
	_ = p.log.Close()
}

// cpu returns the CPU time that the process has used, by the kernel's clock of it: /proc counts in hundredths of a second.
func (p *process) cpu() (time.Duration, error) {
	var used unix.Timespec
	clock := int32(^p.cmd.Process.Pid<<3 | 2) // clock_getcpuclockid(3)
	if err := unix.ClockGettime(clock, &used); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", p.cmd.Process.Pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// memory returns a line of the kernel's status of the process, in MiB: VmRSS is all that is resident, RssAnon what no file is behind.
func (p *process) memory(what string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == what+":" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d: no %s", p.cmd.Process.Pid, what)
}

// usage is what a process has used of the machine.
type usage struct {
	cpu       time.Duration
	rss, anon float64
	at        time.Time
}

func (p *process) usage() (usage, error) {
	cpu, errCPU := p.cpu()
	rss, errRSS := p.memory("VmRSS")
	anon, errAnon := p.memory("RssAnon")
	return usage{cpu: cpu, rss: rss, anon: anon, at: time.Now()}, errors.Join(errCPU, errRSS, errAnon)
}

// load returns the part of one core that was used since before, in percent.
func (u usage) load(before usage) float64 {
	return 100 * (u.cpu - before.cpu).Seconds() / u.at.Sub(before.at).Seconds()
}

// eventually calls a condition until it holds.
func eventually(ctx context.Context, limit time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("never: %s: %w", what, err)
		}
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
