package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// haproxyConfig sends each connection to its original destination, as far as HAProxy knows it. HAProxy can ask the kernel for IPv4 only: of
// a redirected IPv6 connection it sees its own listener. Inbound connections go on from the source address that our rules and Istio's leave
// alone. A connection from the address that HAProxy itself dials from is rejected: whatever the rules are, none is passed on twice.
const haproxyConfig = `
global
  maxconn 20
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
  tcp-request content reject if { src ::1 }
  log-format "accepted %[dst]:%[dst_port]"
  default_backend original
backend original
  server original 0.0.0.0
frontend inbound
  bind :15006
  tcp-request content reject if { src 127.0.0.6 }
  log-format "accepted %[dst]:%[dst_port]"
  default_backend application
frontend ready
  bind 127.0.0.1:15099
  no log
  tcp-request connection reject
  default_backend original
backend application
  source 127.0.0.6
  server application 0.0.0.0
`

// A real proxy that cannot find the original destination dials its own listener. Our rule refuses that; without it, the proxy gets its own
// connection.
func TestRules_haproxyOnIPv6_isNotItsOwnClient(t *testing.T) {
	t.Parallel()
	haproxy := kerneltest.ProgramPath(t, "haproxy")
	for _, b := range backends(t) {
		for name, c := range map[string]struct {
			guarded bool
			want    int // connections that HAProxy accepts for one that the application makes
		}{
			"with our rule":            {true, 1},
			"without it, as a control": {false, 2},
		} {
			t.Run(b.Name()+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "ds")
				rules := configuration{spec: iptables.DefaultSpec()}.rules(t)
				if !c.guarded {
					rules = withoutRules(rules, "dials its own listener")
				}
				if _, err := b.Apply(t.Context(), w.pod().Path(), rules); err != nil {
					t.Fatal(err)
				}
				w.wantAccepted(t, w.runProxy(t, haproxy), selfDial{dst: "[fd00:99::34]:80"}, c.want)
			})
		}
	}
}

// The connection by which the wait container tests the rules reaches the proxy once. The proxy forwards it to its destination, and is
// refused there. Without our rules it would come back to the proxy.
func TestProof_haproxy_isReachedOnce(t *testing.T) {
	t.Parallel()
	haproxy := kerneltest.ProgramPath(t, "haproxy")
	for _, b := range backends(t) {
		for name, c := range map[string]struct {
			rules func(iptables.Ruleset) iptables.Ruleset
			want  int
		}{
			"with our rules":            {func(r iptables.Ruleset) iptables.Ruleset { return r }, 1},
			"without the refusal":       {func(r iptables.Ruleset) iptables.Ruleset { return withoutRules(r, "may not prove") }, 1},
			"from any source":           {fromAnySource, 1},
			"without both, the control": {func(r iptables.Ruleset) iptables.Ruleset { return fromAnySource(withoutRules(r, "may not prove")) }, 2},
		} {
			t.Run(b.Name()+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "ds")
				if _, err := b.Apply(t.Context(), w.pod().Path(), c.rules(configuration{spec: iptables.DefaultSpec()}.rules(t))); err != nil {
					t.Fatal(err)
				}
				w.wantAccepted(t, w.runProxy(t, haproxy), selfDial{src: "127.0.0.1", dst: "127.0.0.6:15005"}, c.want)
			})
		}
	}
}

// fromAnySource accepts the wait container's connection from any address.
func fromAnySource(r iptables.Ruleset) iptables.Ruleset {
	for _, c := range r.Chains {
		for i, rule := range c.Rules {
			if strings.Contains(rule.Comment, "proving") {
				c.Rules[i].Conds = slices.DeleteFunc(slices.Clone(rule.Conds), func(c iptables.Cond) bool { return c.Field == iptables.SrcAddr })
			}
		}
	}
	return r
}

// wantAccepted wants HAProxy to accept a number of connections for one of the application, which ends when all that follow from it have ended.
func (w world) wantAccepted(t *testing.T, log string, dial selfDial, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, _ = kerneltest.Ask(ctx, w.pod(), kerneltest.App, "tcp", dial.src, dial.dst)
	n := 0
	kerneltest.Eventually(t, "HAProxy logs what it has accepted", func() bool {
		n = strings.Count(readFile(t, log), "accepted")
		return n >= want
	})
	if n != want {
		t.Errorf("%d connections, want %d:\n%.500s", n, want, readFile(t, log))
	}
}

// runProxy starts HAProxy in the pod as the proxy's user and returns the file that it logs to.
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
	if err := w.pod().Inside(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = cmd.Wait(); _ = out.Close() })
	kerneltest.Eventually(t, "HAProxy listens", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := kerneltest.Ask(ctx, w.pod(), kerneltest.App, "tcp", "", "127.0.0.1:15099")
		return err == nil || !strings.Contains(err.Error(), "refused")
	})
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
