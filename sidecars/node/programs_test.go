package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	goruntime "runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/sidecar"
)

// run runs a program as the first process of a PID namespace, and passes signals on to it. The program ends with this process.
func (c standinContainer) run() int {
	goruntime.LockOSThread() // the program is told of this thread's end
	cmd := exec.Command(c.Program[0], c.Program[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL, Credential: &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)},
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 71
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// deaf is the name of a program that listens on the proxy's ports beside others, and accepts nothing.
const deaf = "deaf"

func listenDeafly() int {
	signal.Ignore(unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1)
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		errControl := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if errControl != nil {
			return errControl
		}
		return err
	}}
	for _, address := range []string{"0.0.0.0:15001", "0.0.0.0:15006"} {
		l, err := config.Listen(context.Background(), "tcp4", address) //nolint:forbidigo // it is a program's start
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 72
		}
		defer l.Close() //nolint:errcheck // not before the program is killed
	}
	select {}
}

// becomeProxy gives up root.
func (c standinContainer) becomeProxy() error {
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(c.GID), syscall.Setuid(c.UID))
}

// images returns the images of the proxies that run, by epoch.
func (p *processes) images() (out []string) {
	all, _ := p.List(context.Background(), "") //nolint:forbidigo // it asks nobody
	for _, c := range all {
		if c.State == sidecar.Running {
			out = append(out, strings.Split(c.Image, ",")[0])
		}
	}
	return out
}
