package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verifyInterval is how often the agent that is installed looks at every pod.
func (c *cluster) verifyInterval(t testing.TB) time.Duration {
	t.Helper()
	set, err := c.api.AppsV1().DaemonSets(agentName).Get(t.Context(), agentName, metav1.GetOptions{})
	must(t, err)
	for _, arg := range set.Spec.Template.Spec.Containers[0].Args {
		if value, ok := strings.CutPrefix(arg, "--verify-interval="); ok {
			d, err := time.ParseDuration(value)
			must(t, err)
			return d
		}
	}
	return 10 * time.Second // the program's default
}

// programmedText prints all that the agent owns in a network namespace: its table without counters, its policy routes, its address.
const programmedText = `nft -s list table inet pod-network-controller 2>&1
for f in -4 -6; do ip $f rule | grep -w 15006 | sed 's/^[0-9]*://'; ip $f route show table 15006 2>/dev/null; done
ip -6 address show dev lo | grep -o 'inet6 ::6/128'; true`

// inNamespace runs a script in a pod's network namespace, and gives what it printed.
func inNamespace(ctx context.Context, netns, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+netns, "sh", "-c", script).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("in %s: %w: %s", netns, err, strings.TrimSpace(string(out[:min(len(out), 300)])))
	}
	return string(out), nil
}

// generations are what the agent puts behind a set's name when it makes another one beside the old. waits is the chain that is there while a proxy
// does not listen.
var (
	generations = regexp.MustCompile(`((?:set |@)[a-z-]+)\.\d+`)
	waits       = regexp.MustCompile(`(?m)^\tchain hold \{\n(?:\t\t.*\n)*\t\}\n\n?`)
)

// programmed gives what the agent owns in a pod's network namespace, in a form that is the same for all pods that ask for the same.
func programmed(ctx context.Context, netns string) (string, error) {
	text, err := inNamespace(ctx, netns, programmedText)
	text = strings.ReplaceAll(waits.ReplaceAllString(text, ""), "\n\n}", "\n}")
	return generations.ReplaceAllString(text, "$1"), err
}

// isNamespace reports whether there is still a network namespace at a path.
func isNamespace(path string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(path, &fs) == nil && fs.Type == nsfs
}

// asks is what decides about a pod's rules here, and names the bystander with the same ones.
func asks(name string, edited bool) string {
	bystander := "bystander"
	if strings.Contains(name, "tproxy") {
		bystander += "-tproxy"
	}
	if edited {
		bystander += "-edited"
	}
	return bystander
}

// learnReferences takes what the bystanders have now for right.
func (r *chaosRun) learnReferences() {
	r.t.Helper()
	for _, name := range r.bystanders() {
		pod, netns := r.look(name)
		text, err := programmed(r.t.Context(), netns)
		must(r.t, err)
		r.references[name], r.reports[name] = text, reportOf(pod)
		r.handles[name], err = inNamespace(r.t.Context(), netns, "nft -a -s list ruleset")
		must(r.t, err)
	}
	plain, edited := r.references["bystander"], r.references["bystander-edited"]
	if !strings.Contains(plain, "redirect to :15001") || strings.Contains(plain, editedPort) || !strings.Contains(edited, editedPort) ||
		!strings.Contains(r.references["bystander-tproxy"], "fwmark") {
		r.t.Fatalf("the bystanders hold %q", r.references)
	}
}

// watchRepairs looks into the pods whose rules chaos has changed, until they are right again. An edit that the agent has not seen
// yet does not matter: what the pod asked for before is right as well.
func (r *chaosRun) watchRepairs(ctx context.Context) {
	for _, uid := range r.judge.Open() {
		r.mu.Lock()
		netns, name := r.touched[uid], ""
		for n, pod := range r.seen {
			if string(pod.UID) == uid {
				name = n
			}
		}
		r.mu.Unlock()
		if !isNamespace(netns) {
			r.judge.Gone(uid, time.Now())
			continue
		}
		text, err := programmed(ctx, netns)
		if err == nil && (text == r.references[asks(name, false)] || text == r.references[asks(name, true)]) {
			r.judge.Repaired(uid, r.agents.clock(), time.Now())
		}
	}
	for _, uid := range r.judge.Overdue(r.agents.clock()) {
		if _, netns := r.byUID(uid); netns != "" {
			text, _ := programmed(ctx, netns)
			r.fault("%s: nobody has repaired its rules within %s:\n%s", r.nameOf(uid), r.judge.Bound, text[:min(len(text), 2000)])
		}
	}
}

// byUID gives a pod that is there and is to stay.
func (r *chaosRun) byUID(uid string) (name, netns string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, pod := range r.seen {
		if string(pod.UID) == uid && pod.DeletionTimestamp == nil {
			return name, r.netns[uid]
		}
	}
	return "", ""
}

// agentWatch counts the time in which an agent was able to work, and what the agents did in all their lives.
type agentWatch struct {
	mu     sync.Mutex
	able   time.Duration
	last   time.Time
	agents map[float64]metrics // as last seen, by the time of the process's start: two answer while one takes over
	maxRSS float64
}

// clock is the time in which an agent was able to repair.
func (w *agentWatch) clock() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.able
}

// watchAgent looks at the agent's metrics. It is able to work when it answers, and knows at least the pods that nobody touches.
func (r *chaosRun) watchAgent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m, err := r.readMetrics(ctx)
	r.agents.note(m, err == nil && m.sum(metricPrefix+"pods") >= float64(len(r.bystanders())), time.Now())
}

func (w *agentWatch) note(m metrics, able bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if able && !w.last.IsZero() {
		w.able += now.Sub(w.last)
	}
	w.last = time.Time{}
	if !able {
		return
	}
	w.last = now
	if w.agents == nil {
		w.agents = map[float64]metrics{}
	}
	w.agents[m.sum("process_start_time_seconds")] = m
	w.maxRSS = max(w.maxRSS, m.sum("process_resident_memory_bytes"))
}

// drift adds up what all agents have counted, by its kind.
func (w *agentWatch) drift() map[string]float64 {
	drift := map[string]float64{}
	for _, m := range w.agents {
		for series, n := range m {
			if kind, ok := strings.CutPrefix(series, metricPrefix+"drift_total{"); ok {
				drift[kind] += n
			}
		}
	}
	return drift
}
