package conformance

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// kills is how often a process is killed while it applies rules.
const kills = 30

// victimBackend is the environment variable that makes the test binary the process that is killed.
const victimBackend = "CONFORMANCE_VICTIM_BACKEND"

// pair are the two rule sets that the victim switches between: they differ in mode, sets, chains and routes.
func pair() [2]iptables.Spec {
	return [2]iptables.Spec{
		iptables.DefaultSpec(),
		with(func(s *iptables.Spec) {
			tproxy(s)
			s.DNS = iptables.DNSAll
			s.ExcludeCIDRs = manyCIDRs()[:50]
			s.DropInvalid = true
		}),
	}
}

// TestVictim is not a test of its own: it is what TestApply_agentKilled_leavesWholeRules starts and kills.
func TestVictim(t *testing.T) {
	name := os.Getenv(victimBackend)
	if name == "" {
		return
	}
	for _, b := range backends(t) {
		if b.Name() != name {
			continue
		}
		specs := pair()
		_, _ = os.Stdout.WriteString("ready\n")
		for i := 1; ; i++ { // the namespace holds the first of them
			if _, err := b.Apply(t.Context(), "/proc/self/fd/3", configuration{spec: specs[i%2]}.rules(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Whenever the agent is killed, what is in the namespace is the old rule set or the new one, whole; and the next call ends
// with what was asked for.
func TestApply_agentKilled_leavesWholeRules(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		t.Run(b.Name(), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test wants repeatable numbers
			w := newWorld(t, "ds")
			mustApply(t, b, w, configuration{spec: pair()[0]})
			found := map[string]int{}
			span := changeTime(t, b, w)
			for range kills { // during a change, or during the way back
				killDuring(t, b.Name(), w, time.Duration(random.Int64N(int64(2*span))))
				found[wholeness(t, b, w)]++
				mustApply(t, b, w, configuration{spec: pair()[0]})
				if drift, err := b.Verify(t.Context(), w.pod().Path(), configuration{spec: pair()[0]}.rules(t)); err != nil || len(drift) > 0 {
					t.Fatalf("the next call did not converge: %v, %v", drift, err)
				}
			}
			t.Logf("killed %d times: %v", kills, found)
			if found["old"] == 0 || found["new"] == 0 {
				t.Errorf("the kills did not fall before and after a change: %v", found)
			}
		})
	}
}

// changeTime is how long a change to the other rule set takes, or back.
func changeTime(t *testing.T, b backend, w world) time.Duration {
	t.Helper()
	start := time.Now()
	for _, i := range []int{1, 0} {
		mustApply(t, b, w, configuration{spec: pair()[i]})
	}
	return time.Since(start) / 2
}

// killDuring starts a victim, waits until it is at work and a little longer, and kills it.
func killDuring(t *testing.T, name string, w world, after time.Duration) {
	t.Helper()
	pod, err := os.Open(w.pod().Path())
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), victimBackend+"="+name)
	cmd.ExtraFiles = []*os.File{pod}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "ready") {
		t.Fatalf("victim said %q, error %v", line, err)
	}
	<-time.After(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// wholeness returns which of the two rule sets the namespace holds. A stage of a switch counts as the set that captures what it must: both
// sets capture everything that the probes below make.
func wholeness(t *testing.T, b backend, w world) string {
	t.Helper()
	for i, s := range pair() {
		drift, err := b.Verify(t.Context(), w.pod().Path(), configuration{spec: s}.rules(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(onlyRules(drift)) == 0 {
			return []string{"old", "new"}[i]
		}
	}
	w.mustCapture(t)
	return "between: both at work"
}

// onlyRules leaves out what is beside the rules: a route that no rule uses yet, or any more, harms nobody.
func onlyRules(drift iptables.Drift) iptables.Drift {
	return slices.DeleteFunc(drift, func(d iptables.Difference) bool { return d.Kind == iptables.KindRoute })
}

// mustCapture connects in both directions and both families, and wants the proxy every time.
func (w world) mustCapture(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for port, who := range map[string]string{"15001": "PROXY:15001", "15006": "PROXY:15006", "8080": "APP:8080"} {
		l := kerneltest.ListenTCP(t, w.pod(), kerneltest.Owner{UID: 0, GID: 1337}, true, "[::]:"+port)
		go kerneltest.Answer(l, who)
		defer l.Close()
	}
	for _, s := range streams() {
		got, err := kerneltest.Ask(ctx, w.spaces[s.from], s.owner, "tcp", "", s.dst)
		if err != nil || got != s.banner {
			t.Errorf("half a rule set: %s answered by %q, want %s (%v)", s.dst, got, s.banner, err)
		}
	}
}
