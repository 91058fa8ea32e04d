package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/test/kerneltest"
)

const programName = "wait"

// TestMain is the program itself where a test has started it by that name: machines that run tests need no Go.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == programName {
		main()
	}
	os.Exit(m.Run())
}

// program makes a file of the program, which any user may run.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, programName)
	tests, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, tests, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// process is one `wait` inside a pod.
type process struct {
	*exec.Cmd
	out, err bytes.Buffer
}

// start runs `wait` in a namespace as a user without any capability, who is the proxy where uid is 1337.
func start(t *testing.T, file string, ns *netns.NS, uid uint32, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(t.Context(), file, args...)}
	p.Stdout, p.Stderr = &p.out, &p.err
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := ns.Inside(p.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// end waits for the process and returns its exit code and its output.
func (p *process) end() (code int, said string) {
	_ = p.Wait() // an exit code other than 0 is an error here
	return p.ProcessState.ExitCode(), p.out.String() + p.err.String()
}

// listens waits until the process listens on the inbound port, as it does while it tries.
func (p *process) listens(t *testing.T, ns *netns.NS) {
	t.Helper()
	kerneltest.Eventually(t, "it listens", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := kerneltest.Dial(ctx, ns, kerneltest.App, "", "127.0.0.1:15006")
		return err != nil && !strings.Contains(err.Error(), "refused")
	})
}

// applyRules programs a namespace with the default rules, changed.
func applyRules(t *testing.T, ns *netns.NS, change func(*iptables.Spec)) {
	t.Helper()
	spec := iptables.DefaultSpec()
	if change != nil {
		change(&spec)
	}
	rules, err := iptables.Rules(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nftables.New().Apply(t.Context(), ns, rules); err != nil {
		t.Fatal(err)
	}
}

func TestWaitAsAProcess(t *testing.T) {
	file := program(t)
	for name, test := range map[string]func(*testing.T, string){
		"every mode, every user":                testEveryModeAndUser,
		"rules that come while it waits":        testRulesComeLater,
		"a port of the pod's own":               testPort,
		"what the pod's annotations say":        testWhatThePodSays,
		"a signal ends it":                      testInterrupted,
		"flags that are wrong, time that is up": testOtherEnds,
	} {
		t.Run(name, func(t *testing.T) { test(t, file) })
	}
}

func testEveryModeAndUser(t *testing.T, file string) {
	t.Helper()
	proven := regexp.MustCompile(`^redirection is in force after \S+: IPv4 IPv6\n$`)
	for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
		for _, uid := range []uint32{0, 1000, 1337} {
			pod, _ := kerneltest.NewPod(t)
			code, said := start(t, file, pod, uid, "--once").end()
			if code != exitMissing || !strings.HasPrefix(said, "error: rules missing: IPv4: ") || strings.Count(said, "\n") != 1 {
				t.Errorf("%s as %d, without rules: code %d, said %q", mode, uid, code, said)
			}
			applyRules(t, pod, func(s *iptables.Spec) { s.Mode = mode })
			code, said = start(t, file, pod, uid, "--once").end()
			if refused := code == exitMissing && strings.Contains(said, "IPv4: connection refused; IPv6: connection refused"); uid == 1337 && !refused {
				t.Errorf("%s as the proxy's user: code %d, said %q", mode, code, said)
			}
			if uid != 1337 && (code != 0 || !proven.MatchString(said)) {
				t.Errorf("%s as %d, with rules: code %d, said %q", mode, uid, code, said)
			}
		}
	}
}

// What the pod's annotations say comes by the downward API, behind what holds for all; nothing does where one is absent.
func testWhatThePodSays(t *testing.T, file string) {
	t.Helper()
	pod, _ := kerneltest.NewPod(t)
	for name, args := range map[string][]string{"for all": {"--mode=NONE", "--mode="}, "by the pod": {"--mode=REDIRECT", "--mode=NONE"}} {
		if code, said := start(t, file, pod, 1000, append(args, "--once")...).end(); code != 0 || !strings.Contains(said, "NONE") {
			t.Errorf("no rules %s: code %d, said %q", name, code, said)
		}
	}
	applyRules(t, pod, func(s *iptables.Spec) { s.DirectIPv6 = true })
	for want, args := range map[int][]string{0: {"--ipv6=capture", "--ipv6=direct", "--mode=REDIRECT"}, exitMissing: {"--ipv6=direct", "--ipv6=capture"}} {
		if code, said := start(t, file, pod, 1000, append(args, "--once")...).end(); code != want || code == 0 && !strings.HasSuffix(said, ": IPv4\n") {
			t.Errorf("%v: code %d, said %q", args, code, said)
		}
	}
}

func testPort(t *testing.T, file string) {
	t.Helper()
	pod := kerneltest.New(t)
	applyRules(t, pod, func(s *iptables.Spec) { s.InboundPort = 16006 })
	if code, said := start(t, file, pod, 1000, "--once", "--port=16006").end(); code != 0 {
		t.Errorf("code %d, said %q", code, said)
	}
	if code, said := start(t, file, pod, 1000, "--once").end(); code != exitMissing {
		t.Errorf("for the default port: code %d, said %q", code, said)
	}
}

func testOtherEnds(t *testing.T, file string) {
	t.Helper()
	code, said := start(t, file, kerneltest.New(t), 1000, "--timeout", "100ms").end()
	if code != exitMissing || !strings.HasPrefix(said, "error: waited 100ms: rules missing: ") {
		t.Errorf("the time is up: code %d, said %q", code, said)
	}
	for _, args := range [][]string{{"--port=http"}, {"--port=0"}, {"--port"}, {"--timeout=-1s"}, {"--timeout=5"}, {"--twice"}, {"now"}} {
		if code, said := start(t, file, kerneltest.New(t), 1000, args...).end(); code != exitError || said == "" {
			t.Errorf("%q: code %d, said %q", args, code, said)
		}
	}
}

// testRulesComeLater also holds it against its memory: it has done all that it ever does.
func testRulesComeLater(t *testing.T, file string) {
	t.Helper()
	pod, _ := kerneltest.NewPod(t)
	p := start(t, file, pod, 1000, "--timeout=30s")
	status := fmt.Sprintf("/proc/%d/status", p.Process.Pid)
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB\n(?s:.*)nonvoluntary`)
	p.listens(t, pod)
	text, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	var kB int
	if found := peak.FindSubmatch(text); found == nil {
		t.Errorf("no peak of memory in %s", text)
	} else if _, err := fmt.Sscan(string(found[1]), &kB); err != nil || kB >= 15*1024 {
		t.Errorf("%d kB of memory at its peak, want less than 15 MB (%v)", kB, err)
	}
	t.Logf("%d kB of memory at its peak", kB)
	applyRules(t, pod, nil)
	applied := time.Now()
	if code, said := p.end(); code != 0 {
		t.Errorf("code %d, said %q", code, said)
	}
	late := time.Since(applied)
	t.Logf("it saw the rules after %s", late)
	if late > 2*time.Second {
		t.Errorf("it took %s to see the rules", late)
	}
}

// testInterrupted holds also where it is the first process of a container and signals have no default.
func testInterrupted(t *testing.T, file string) {
	t.Helper()
	pod := kerneltest.New(t)
	p := start(t, file, pod, 1000)
	p.listens(t, pod)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, said := p.end(); code != exitError || !strings.HasPrefix(said, "error: interrupted") {
		t.Errorf("code %d, said %q", code, said)
	}
}
