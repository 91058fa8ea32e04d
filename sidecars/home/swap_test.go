package home

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// swapTime is how long the agent works at least beside a process that swaps, and maxSwapTime how long until each of its ways has met something.
const swapTime, maxSwapTime = 3 * time.Second, 30 * time.Second

// swapped are the names in the directories that a proxy can write to, as it sees them, which the agent reads, writes, gives away or removes.
func swapped() []string {
	return []string{
		filepath.Join(pathShm, memoryName), filepath.Join(pathShm, memoryName+".next"),
		filepath.Join(profile.PathRun, profile.HandoverSocket(0)), filepath.Join(profile.PathRun, profile.AdminSocket(0)),
	}
}

// swapForEver is the hostile proxy: each name becomes, again and again and by one atomic exchange, a small file, a pipe, a socket, a link to the node's
// file, to its directory and to its socket, and a directory in which a link to the node's directory takes turns with a directory.
func swapForEver(outside string) {
	for _, name := range swapped() {
		side := name + ".side"
		become := []func() error{
			func() error { return os.WriteFile(side, []byte("small"), 0o644) },
			func() error { return os.Symlink(outside+"/secret", side) },
			func() error { return unix.Mkfifo(side, 0o644) },
			func() error { return os.Symlink(outside+"/socket", side) },
			func() error { return listenAt(side) },
			func() error { return os.Symlink(outside, side) },
			func() error { return errors.Join(os.MkdirAll(side+"/a", 0o700), os.Symlink(outside, side+"/b")) },
		}
		go func() {
			for i := 0; ; i++ {
				_ = os.RemoveAll(side)
				_ = become[i%len(become)]()
				if unix.Renameat2(unix.AT_FDCWD, side, unix.AT_FDCWD, name, unix.RENAME_EXCHANGE) != nil {
					_ = os.Rename(side, name)
				}
				<-time.After(100 * time.Microsecond)
			}
		}()
		go func() {
			for {
				if unix.Renameat2(unix.AT_FDCWD, name+"/a", unix.AT_FDCWD, name+"/b", unix.RENAME_EXCHANGE) != nil {
					<-time.After(50 * time.Microsecond)
				}
			}
		}()
	}
}

// listenAt makes a socket that answers until another one is made.
func listenAt(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	time.AfterFunc(time.Second, func() { _ = l.Close() })
	return nil
}

// outsideOf makes the node's file, directory and socket that nobody may be led to. entered counts the connections to the socket.
func outsideOf(t *testing.T, homes Homes) (dir string, entered *atomic.Int64) {
	t.Helper()
	dir = filepath.Join(filepath.Dir(homes.Root), "outside")
	if err := errors.Join(os.MkdirAll(dir+"/sub", 0o755), os.WriteFile(dir+"/secret", []byte(marker), 0o600), os.WriteFile(dir+"/sub/file", []byte(marker), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, kerneltest.CountConnections(t, dir+"/socket")
}

// describe tells all that the agent could have changed there.
func describe(t *testing.T, dir string) string {
	t.Helper()
	return kerneltest.Shell(t, kerneltest.New(t), "find '"+dir+"' -printf '%P %y %m %U:%G %s %T@ %C@ %l\n' | sort; cat '"+dir+"'/secret '"+dir+"'/sub/file", "")
}

// A proxy that swaps what is in its directories while the agent works there has it write, give away, remove and read nothing else, and connect to nothing else.
func TestHome_proxySwapsPaths_agentIsLedNowhere(t *testing.T) {
	const id = 1337
	o := Owner{id, id}
	homes, h, _ := newNodeInMemory(t, o)
	outside, entered := outsideOf(t, homes)
	before := describe(t, outside)
	if err := os.WriteFile(filepath.Join(h.Path, memoryCopy), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := startContainer(t, "swapper "+outside, id, "", h.Mounts(profile.Instance{Version: &profile.Version{}}))
	if got := proxy.ask(t, "begin"); got != "swapping" {
		t.Fatalf("the proxy says %q", got)
	}
	did := map[string]int{}
	for began := time.Now(); time.Since(began) < swapTime || !hasAll(did) && time.Since(began) < maxSwapTime; {
		workBeside(t, h, o, did)
	}
	if t.Logf("%v", did); !hasAll(did) {
		t.Errorf("the agent has not done all, or nobody who trusts a path is led outside: %v", did)
	}
	_ = proxy.Process.Kill()
	if err := h.Remove(); err != nil {
		t.Error(err)
	}
	if after := describe(t, outside); after != before || entered.Load() > 0 {
		t.Errorf("outside there is now, after %d connections:\n%s\nwant:\n%s", entered.Load(), after, before)
	}
}

// hasAll reports whether the agent has met what it can work with in each way, and a program that trusts the path was led outside.
func hasAll(did map[string]int) bool {
	return did["kept"] > 0 && did["restored"] > 0 && did["given"] > 0 && did["connected"] > 0 && did["forgotten"] > 0 && did["lured"] > 0
}

// workBeside does each once of what the agent does in the directories, and counts what it could do.
func workBeside(t *testing.T, h Home, o Owner, did map[string]int) {
	t.Helper()
	count := func(what string, err error) {
		if err == nil {
			did[what]++
		}
	}
	for range 50 {
		if luredBy(filepath.Join(h.Shm(), memoryName)) {
			did["lured"]++
		}
	}
	count("kept", KeepMemory(h))
	if text, err := os.ReadFile(filepath.Join(h.Path, memoryCopy)); err != nil || bytes.Contains(text, []byte(marker)) {
		t.Fatalf("the agent has read %q, error %v", text, err)
	}
	count("restored", RestoreMemory(h, o))
	count("given", h.GiveSocket(0, Owner{o.UID + 1, o.GID + 1}))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		conn, err := DialSocket(ctx, filepath.Join(h.Run(), profile.AdminSocket(0)))
		cancel()
		if count("connected", err); err == nil {
			_ = conn.Close()
		}
	}
	count("forgotten", h.Epoch(0).Forget())
}

// luredBy reports whether an agent that trusts a path would be led outside.
func luredBy(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() { // a pipe would hold it up
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // it was only read
	text := make([]byte, len(marker))
	n, err := unix.Read(fd, text)
	return err == nil && string(text[:n]) == marker
}

// startSwapping answers the test's question.
func startSwapping(question, outside string) string {
	if question != "begin" {
		return "what?"
	}
	swapForEver(strings.TrimSpace(outside))
	return "swapping"
}
