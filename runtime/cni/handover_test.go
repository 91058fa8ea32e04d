package cni

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestServer_twoAgents_newestHasTheSocket(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s")
	older, newer := &fakeAgent{}, &fakeAgent{}
	stopOlder := start(t, socket, older)
	start(t, socket, newer)
	stopOlder() // as in a rolling update
	wantServed(t, socket)
	if len(older.requests()) != 0 || len(newer.requests()) != 1 {
		t.Errorf("older was asked %q, newer %q", older.requests(), newer.requests())
	}
}

// If a new agent stops or is killed soon, the old one takes the socket back.
func TestServer_newestAgentEnds_olderTakesTheSocketBack(t *testing.T) {
	quickly := func(s *Server) { s.watchInterval = 5 * time.Millisecond }
	for name, leave := range map[string]func(t *testing.T, socket string){
		"it stopped": func(t *testing.T, socket string) {
			t.Helper()
			start(t, socket, &fakeAgent{})()
		},
		"it was killed": func(t *testing.T, socket string) {
			t.Helper()
			l, err := listen(socket)
			if err != nil {
				t.Fatal(err)
			}
			_ = l.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(tempDir(t), "s")
			older := &fakeAgent{}
			stop := start(t, socket, older, quickly)
			leave(t, socket)
			eventually(t, "somebody listens", func() bool { return !abandoned(t.Context(), socket, time.Second) })
			wantServed(t, socket)
			if asked := older.requests(); asked[len(asked)-1] != "ADD" {
				t.Errorf("the remaining agent was asked %q", asked)
			}
			stop()
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(socket), "*")); len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// While both run, the newer one keeps the path, even if it refuses requests.
func TestServer_olderAgent_leavesTheSocket(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s")
	older, newer := &fakeAgent{}, &fakeAgent{err: errors.New("not now")}
	start(t, socket, older, func(s *Server) { s.watchInterval = time.Millisecond })
	asked := make(chan struct{}, 1000)
	start(t, socket, newer, func(s *Server) {
		s.config.Ready = func(context.Context) error {
			select {
			case asked <- struct{}{}:
			default:
			}
			return errors.New("not ready")
		}
	})
	for range 20 { // checks of the older one
		<-asked
	}
	if got := send(t, dial(t, socket), goodRequest); !strings.Contains(got, "not now") || len(older.requests()) != 0 {
		t.Errorf("answered %q, the older one was asked %q", got, older.requests())
	}
}

// A socket that cannot be made again (no space, no descriptors, something in the way) does not end the agent: it tries again.
func TestServer_socketNotTakenBack_isTriedAgain(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s")
	start(t, socket, &fakeAgent{}, func(s *Server) { s.watchInterval = 5 * time.Millisecond }, func(s *Server) {
		var tries atomic.Int32
		s.config.Log = slog.New(slog.NewTextHandler(writerFunc(func(line string) {
			if strings.Contains(line, "not made") && tries.Add(1) == 3 {
				_ = os.Remove(socket)
			}
		}), nil))
	})
	if err := errors.Join(os.Remove(socket), os.Mkdir(socket, 0o700)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "somebody listens", func() bool { return !abandoned(t.Context(), socket, time.Second) })
	wantServed(t, socket)
}

type writerFunc func(line string)

// Write calls f with a line.
func (f writerFunc) Write(line []byte) (int, error) { f(string(line)); return len(line), nil }
