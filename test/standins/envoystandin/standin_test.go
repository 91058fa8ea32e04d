package envoystandin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// envoy starts one of a line in this process. Its exit code and what it prints come when it ends.
func envoy(t *testing.T, dir string, epoch int, args ...string) (ended <-chan string, stop context.CancelFunc) {
	t.Helper()
	config, err := json.Marshal(Config{Admin: fmt.Sprintf("%s/admin-%d", dir, epoch)})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, strconv.Itoa(epoch)+".json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	base := os.Getpid() % 100000
	t.Cleanup(func() { _ = os.Remove(fmt.Sprintf("/dev/shm/envoy_shared_memory_%d0", base)) })
	args = append([]string{
		"-c", file, "--base-id", strconv.Itoa(base), "--restart-epoch", strconv.Itoa(epoch), "--socket-path", dir + "/s", "--socket-mode", "0600",
	}, args...)
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan string, 1)
	go func() {
		var text strings.Builder
		code := Main(ctx, args, &text)
		out <- fmt.Sprintf("%d %s", code, text.String())
	}()
	return out, cancel
}

// ready waits until an epoch serves.
func ready(t *testing.T, dir string, epoch int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("%s/admin-%d", dir, epoch))
	}}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-tick.C {
		if answer, err := client.Get("http://x/ready"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
	}
	t.Fatalf("epoch %d is not ready", epoch)
}

func TestItKeepsEnvoysRules(t *testing.T) {
	for name, c := range map[string]struct {
		epoch int
		args  []string
		env   map[string]string
		first bool // one of epoch 0 serves
		want  string
	}{
		"the version":                         {args: []string{"--hot-restart-version"}, want: "0 11.104"},
		"an argument that it does not know":   {args: []string{"--base"}, want: "1 error: flag provided but not defined"},
		"a word that is no argument":          {args: []string{"x"}, want: `1 error: argument "x" is not known`},
		"no parent":                           {epoch: 1, want: "1 error: cannot open shared memory"},
		"the parent of another epoch":         {epoch: 4, first: true, want: "1 error: the parent refuses: epoch 4 does not follow 0"},
		"another version":                     {epoch: 1, first: true, env: map[string]string{EnvVersion: "12.104"}, want: "1 error: hot restart version mismatch: 11"},
		"the parent of an epoch in between":   {epoch: 2, first: true, want: "1 error: hot restart sendmsg() failed"},
		"one that ends while it starts":       {epoch: 1, first: true, env: map[string]string{EnvFault: FaultCrash}, want: "1 error: crashed"},
		"one that ends when it has just been": {epoch: 1, first: true, env: map[string]string{EnvFault: FaultCrashAfter}, want: "1 error: crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.first {
				_, stop := envoy(t, dir, 0)
				defer stop()
				ready(t, dir, 0)
			}
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			ended, stop := envoy(t, dir, c.epoch, c.args...)
			defer stop()
			if got := <-ended; !strings.HasPrefix(got, c.want) {
				t.Errorf("it ends with %q, want %q", got, c.want)
			}
		})
	}
}

// One that starts marks the memory of its line, and a second one is refused until it serves: for ever, if it ends before.
func TestItRefusesALineInWhichOneStarts(t *testing.T) {
	dir := t.TempDir()
	_, stop := envoy(t, dir, 0)
	defer stop()
	ready(t, dir, 0)
	t.Setenv(EnvFault, FaultCrash)
	ended, _ := envoy(t, dir, 1)
	<-ended
	t.Setenv(EnvFault, "")
	ended, _ = envoy(t, dir, 1)
	if got := <-ended; !strings.Contains(got, "previous envoy process is still initializing") {
		t.Errorf("it ends with %q", got)
	}
}

// Whoever ends one ends its parent, and so does its successor after the parent shutdown time.
func TestItEndsItsParent(t *testing.T) {
	dir := t.TempDir()
	first, stop := envoy(t, dir, 0)
	defer stop()
	ready(t, dir, 0)
	second, _ := envoy(t, dir, 1, "--parent-shutdown-time-s", "0")
	if got := <-first; got != "0 " {
		t.Errorf("the parent ends with %q", got)
	}
	ready(t, dir, 1)
	third, stop := envoy(t, dir, 2)
	ready(t, dir, 2)
	stop()
	for name, ended := range map[string]<-chan string{"the parent": second, "itself": third} {
		if got := <-ended; got != "0 " {
			t.Errorf("%s ends with %q", name, got)
		}
	}
}
