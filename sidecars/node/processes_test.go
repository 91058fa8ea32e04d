package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/test/standins/envoystandin"
)

// envStandin has the test program run the stand-in for Envoy, with the mounts and the owner that it names.
const envStandin = "STANDIN_CONTAINER"

// standinContainer is what a container of the stand-in has.
type standinContainer struct {
	Mounts   []sidecar.Mount
	UID, GID int
	// Program is what it runs instead of the stand-in.
	Program []string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(envStandin); text != "" {
		os.Exit(standin(text))
	}
	os.Exit(m.Run())
}

// standin is the first process of a container.
func standin(text string) int {
	var c standinContainer
	if err := errors.Join(json.Unmarshal([]byte(text), &c), c.mount()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	go func() { // a test that panics leaves nothing behind: then nobody has the other end of the pipe
		_, _ = os.NewFile(3, "test").Read(make([]byte, 1))
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}()
	if len(c.Program) > 0 && c.Program[0] != deaf {
		return c.run()
	}
	if err := c.becomeProxy(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	if len(c.Program) > 0 {
		return listenDeafly()
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM) //nolint:forbidigo // it is a program's start
	defer stop()
	return envoystandin.Main(ctx, os.Args[1:], os.Stderr)
}

// mount makes the container's mounts, in the process's own mount namespace.
func (c standinContainer) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	from := make([]int, 0, len(c.Mounts))
	for _, m := range c.Mounts {
		fd, err := unix.Open(m.Host, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Host, err)
		}
		from = append(from, fd)
	}
	for _, empty := range []string{"/run", "/etc", "/dev/shm"} {
		if err := unix.Mount("tmpfs", empty, "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	for i, m := range c.Mounts {
		err := errors.Join(os.MkdirAll(m.Container, 0o755), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", from[i]), m.Container, "", unix.MS_BIND, ""))
		if err != nil {
			return fmt.Errorf("%s: %w", m.Container, err)
		}
	}
	return nil
}

// processes is a runtime whose containers are processes in a network namespace, with mounts of their own. An image is the stand-in for
// Envoy with environment variables: "envoy:2,STANDIN_FAULT=crash". A command is run instead of it.
type processes struct {
	pods map[string]*netns.NS // by sandbox

	mu    sync.Mutex
	all   map[string]*process
	next  int
	calls int
	// killAfter is the number of a call after which the agent is killed: the call is carried out, and no later one is. 0 is never.
	killAfter int
	killed    context.CancelFunc
	logs      bytes.Buffer
	// alive is a pipe's end, which the processes read until the test's process ends.
	alive *os.File
}

// process is a container.
type process struct {
	sidecar.Container
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

// newProcesses returns a runtime that ends its processes with the test.
func newProcesses(t *testing.T) *processes {
	t.Helper()
	alive, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &processes{pods: map[string]*netns.NS{}, all: map[string]*process{}, alive: alive}
	t.Cleanup(func() {
		defer alive.Close()
		defer hold.Close()
		for _, one := range p.all {
			if one.cmd != nil {
				_ = one.cmd.Process.Kill()
				<-one.done
			}
		}
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Log(p.logs.String())
		}
	})
	return p
}

// call counts a call that changes something, and kills the agent after the one that was chosen. p.mu is held.
func (p *processes) call() error {
	p.calls++
	if p.killAfter > 0 && p.calls > p.killAfter {
		return context.Canceled
	}
	if p.calls == p.killAfter {
		p.killed()
	}
	return nil
}

func (p *processes) List(_ context.Context, podUID string) ([]sidecar.Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]sidecar.Container, 0, len(p.all))
	for _, one := range p.all {
		if podUID == "" || one.PodUID == podUID {
			out = append(out, one.Container)
		}
	}
	slices.SortFunc(out, func(a, b sidecar.Container) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return out, nil
}

// Create is two calls, as in a runtime.
func (p *processes) Create(_ context.Context, s sidecar.Spec) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.call(); err != nil {
		return "", err
	}
	for _, one := range p.all {
		if one.PodUID == s.PodUID && one.Epoch == s.Epoch {
			return "", fmt.Errorf("the name of epoch %d is reserved", s.Epoch)
		}
	}
	p.next++
	one := &process{Container: sidecar.Container{
		ID: fmt.Sprintf("c%03d", p.next), Sandbox: s.Sandbox, Labels: s.Labels, Epoch: s.Epoch, Image: s.Image, Created: time.Now(),
	}, done: make(chan struct{})}
	p.all[one.ID] = one
	if err := p.call(); err != nil {
		return "", err
	}
	one.cmd = p.command(s)
	one.cmd.Stdout, one.cmd.Stderr = logWriter{p, one.Epoch}, logWriter{p, one.Epoch}
	if err := p.pods[s.Sandbox].Inside(one.cmd.Start); err != nil {
		return "", err
	}
	one.State = sidecar.Running
	go func() {
		_ = one.cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		one.State, one.code = sidecar.Exited, one.cmd.ProcessState.ExitCode()
		close(one.done)
	}()
	return one.ID, nil
}

// logWriter collects what a proxy prints.
type logWriter struct {
	to    *processes
	epoch uint32
}

func (l logWriter) Write(text []byte) (int, error) {
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	fmt.Fprintf(&l.to.logs, "epoch %d: %s\n", l.epoch, bytes.TrimSpace(text))
	return len(text), nil
}

func (p *processes) command(s sidecar.Spec) *exec.Cmd {
	c := standinContainer{Mounts: s.Mounts, UID: int(s.UID), GID: int(s.GID)}
	if len(s.Command) > 0 {
		c.Program = slices.Concat(s.Command, s.Args)
	}
	container, err := json.Marshal(c)
	if err != nil {
		container = nil
	}
	cmd := exec.Command(os.Args[0], s.Args...)
	cmd.Env = append([]string{envStandin + "=" + string(container)}, strings.Split(s.Image, ",")[1:]...)
	cmd.ExtraFiles = []*os.File{p.alive}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd
}

// Output runs a program to its end.
func (p *processes) Output(_ context.Context, s sidecar.Spec) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.call(); err != nil {
		return "", err
	}
	text, err := p.command(s).CombinedOutput()
	return string(text), err
}

func (p *processes) Signal(_ context.Context, id string, signal unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.call(); err != nil {
		return err
	}
	one := p.all[id]
	if one == nil || one.State != sidecar.Running {
		return sidecar.ErrGone
	}
	return one.cmd.Process.Signal(signal)
}

func (p *processes) Stop(_ context.Context, id string, wait time.Duration) error {
	p.mu.Lock()
	one, err := p.all[id], p.call()
	p.mu.Unlock()
	if err != nil || one == nil || one.cmd == nil {
		return err
	}
	if wait > 0 {
		_ = one.cmd.Process.Signal(unix.SignalNum("SIG" + cmp.Or(one.StopSignal, "TERM")))
		select {
		case <-one.done:
			return nil
		case <-time.After(wait):
		}
	}
	_ = one.cmd.Process.Kill()
	<-one.done
	return nil
}

func (p *processes) Remove(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.call(); err != nil {
		return err
	}
	if one := p.all[id]; one != nil && one.State == sidecar.Running {
		return errors.New("it runs")
	}
	delete(p.all, id)
	return nil
}

func (p *processes) End(_ context.Context, id string) (sidecar.End, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[id]
	if one == nil {
		return sidecar.End{}, sidecar.ErrGone
	}
	return sidecar.End{ExitCode: int32(one.code), Reason: "Error", LogPath: filepath.Join(os.DevNull, "none")}, nil
}

func (p *processes) Wait(ctx context.Context, id string) error {
	p.mu.Lock()
	one := p.all[id]
	p.mu.Unlock()
	if one == nil || one.cmd == nil {
		return sidecar.ErrGone
	}
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *processes) Applications(context.Context, string) ([]sidecar.Application, error) {
	return []sidecar.Application{{ID: "app", Name: "app", State: sidecar.Running}}, nil
}

func (p *processes) TidyLogs([]sidecar.Container) error { return nil }

func (p *processes) Ready(context.Context, string) (bool, error) { return true, nil }

func (p *processes) Addresses(context.Context, string) ([]string, error) { return nil, nil }

func (p *processes) Owner(_ context.Context, spec sidecar.Spec) (uid, gid int64, err error) {
	return spec.UID, spec.GID, nil
}
