package scale

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

// pid is a process of this program's PID namespace, in which it dies with this program.
type pid int

// find returns the process of a program, of which there is one.
func find(program string) (pid, error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		if text, _ := os.ReadFile(file); string(text) == program+"\n" {
			n, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid(n), err
		}
	}
	return 0, errors.Join(fmt.Errorf("no process of %s", program), err)
}

// stopPatience is how long a process may take to end before it is killed.
const stopPatience = 20 * time.Second

// process is a child of this program.
type process struct {
	pid
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
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	return &process{pid: pid(cmd.Process.Pid), cmd: cmd, log: log}, nil
}

// stop ends the process, and kills it if it does not end.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	kill := time.AfterFunc(stopPatience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // says how it ended
	return p.log.Close()
}

// usage is what a process has used of the machine: CPU time, and in MiB what is resident, and of that what no file is behind.
type usage struct {
	cpu       time.Duration
	rss, anon float64
	at        time.Time
}

func (p pid) usage() (usage, error) {
	// The kernel's clock of the process, see clock_getcpuclockid(3): /proc counts in hundredths of a second.
	var used unix.Timespec
	errCPU := unix.ClockGettime(int32(^int(p)<<3|2), &used)
	rss, errRSS := p.memory("VmRSS")
	anon, errAnon := p.memory("RssAnon")
	return usage{cpu: time.Duration(used.Nano()), rss: rss, anon: anon, at: time.Now()}, errors.Join(errCPU, errRSS, errAnon)
}

// memory returns a line of the kernel's status of the process, in MiB.
func (p pid) memory(what string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(text), "\n"+what+":")
	var kib float64
	if _, err := fmt.Sscan(line, &kib); err != nil {
		return 0, fmt.Errorf("process %d: %s: %w", p, what, err)
	}
	return kib / 1024, nil
}

// load returns the part of one core that was used since before, in percent.
func (u usage) load(before usage) float64 {
	return 100 * (u.cpu - before.cpu).Seconds() / u.at.Sub(before.at).Seconds()
}

// eventually calls a condition until it holds.
func eventually(ctx context.Context, limit time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if pause(ctx, 10*time.Millisecond) != nil {
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

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
