package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/iptables"
)

// haproxyConfig sends each connection to where it takes it to have been going. HAProxy can ask the kernel for that for IPv4
// only: of a redirected IPv6 connection it sees its own listener. The number of connections is bounded, for the control.
const haproxyConfig = `
global
  maxconn 400
defaults
  mode tcp
  log stdout format raw local0
  option logasap
  retries 0
  timeout connect 2s
  timeout client 5s
  timeout server 5s
frontend outbound
  bind [::]:15001 v4v6
  log-format "accepted %[dst]:%[dst_port]"
  default_backend original
backend original
  server original 0.0.0.0
`

// A real proxy that cannot find the original destination is refused once, where without our rule it dials itself until it
// runs out of connections.
func TestHAProxyDoesNotLoopOnIPv6(t *testing.T) {
	haproxy := kerneltest.Tool(t, "haproxy")
	for _, b := range backends(t) {
		for name, c := range map[string]struct {
			guarded  bool
			min, max int // connections that HAProxy accepts for one that the application makes
		}{
			"with our rule":            {guarded: true, min: 1, max: 2},
			"without it, as a control": {guarded: false, min: 50, max: 1 << 20},
		} {
			t.Run(b.Name()+"/"+name, func(t *testing.T) {
				w := newWorld(t, "ds")
				rules := configuration{spec: iptables.DefaultSpec()}.rules(t)
				if !c.guarded {
					rules = withoutGuard(rules)
				}
				if _, err := b.Apply(t.Context(), w.pod().Path(), rules); err != nil {
					t.Fatal(err)
				}
				log := w.runProxy(t, haproxy)
				asked, n := w.askUntilHeard(t, log, c.min)
				if n < c.min || n > c.max*asked {
					t.Errorf("%d connections, want %d to %d:\n%.500s", n, c.min, c.max, readFile(t, log))
				}
			})
		}
	}
}

// askUntilHeard has the application connect until HAProxy's log tells of it, and waits for as many connections as are wanted.
func (w world) askUntilHeard(t *testing.T, log string, want int) (asked, accepted int) {
	t.Helper()
	kerneltest.Eventually(t, "HAProxy logs what it accepts", func() bool {
		if accepted = strings.Count(readFile(t, log), "accepted"); accepted == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, _ = kerneltest.Ask(ctx, w.pod(), kerneltest.App, "tcp", "", "[fd00:99::34]:80")
			asked++
		}
		return accepted >= want
	})
	return asked, accepted
}

func withoutGuard(r iptables.Ruleset) iptables.Ruleset {
	for i, c := range r.Chains {
		var kept []iptables.Rule
		for _, rule := range c.Rules {
			if !strings.Contains(rule.Comment, "dials its own listener") {
				kept = append(kept, rule)
			}
		}
		r.Chains[i].Rules = kept
	}
	return r
}

// runProxy starts HAProxy in the pod as the proxy's user and gives the file that it logs to.
func (w world) runProxy(t *testing.T, haproxy string) (log string) {
	t.Helper()
	dir := t.TempDir()
	config, log := filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	// The proxy's user has to get at its configuration.
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.WriteFile(config, []byte(haproxyConfig), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, haproxy, "-db", "-f", config)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1337, Gid: 1337}}
	cmd.Dir = dir // HAProxy ends where it may not be, as in a checkout in /root
	if err := w.pod().Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = cmd.Wait(); _ = out.Close() })
	kerneltest.Eventually(t, "HAProxy listens", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := kerneltest.Ask(ctx, w.pod(), kerneltest.App, "tcp", "", "[::1]:15001")
		return err == nil || !strings.Contains(err.Error(), "refused")
	})
	if err := os.Truncate(log, 0); err != nil { // the question above is no part of the count
		t.Fatal(err)
	}
	return log
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
