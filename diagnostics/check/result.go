// Package check says whether a cluster, or a node, is fit for the agent, and whether an installed agent works. Facts are gathered first
// and once; each check is a pure function of them.
package check

import (
	"fmt"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/printable"
)

// Level is how a check ended.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Result is one line: what was found, and for a warning or a failure what to do.
type Result struct {
	Section string `json:"section"`
	Check   string `json:"check"` // also the heading in docs/check.md
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Do      string `json:"do,omitempty"`
	Doc     string `json:"doc,omitempty"`
}

// finding is what one check returns. The zero value means that the check has nothing to say.
type finding struct {
	level   Level
	message string
	do      string
}

func fine(message string) finding        { return finding{level: OK, message: message} }
func warning(message, do string) finding { return finding{Warn, message, do} }
func failing(message, do string) finding { return finding{Fail, message, do} }

func newResult(section, name string, f finding) Result {
	r := Result{Section: section, Check: name, Level: f.level, Message: printable.Short(f.message, maxMessage), Do: printable.Short(f.do, maxMessage)}
	if f.level != OK {
		r.Doc = "docs/check.md#" + name
	}
	return r
}

// check is one question. It is asked only if everything that it needs was read.
type check struct {
	section, name string
	needs         []source
	when          phase
	ask           func(f *Facts) finding
}

// phase is when a check makes sense.
type phase int

const (
	always phase = iota
	before       // with --pre only
	after        // without --pre only
)

func (p phase) asked(pre bool) bool {
	return p == always || p == before && pre || p == after && !pre
}

// Run asks every check. pre is for a cluster that has no agent yet.
func Run(f *Facts, pre bool) []Result {
	if f.removal {
		return f.removed()
	}
	return append(f.asked(checks(), pre), f.unread()...)
}

// asked asks some of the checks.
func (f *Facts) asked(checks []check, pre bool) (out []Result) {
	for _, c := range checks {
		if !c.when.asked(pre) || !f.has(c.needs...) {
			continue
		}
		if found := c.ask(f); found.level != "" {
			out = append(out, newResult(c.section, c.name, found))
		}
	}
	return out
}

// Worst returns the highest level of a list.
func Worst(results []Result) Level {
	worst := OK
	for _, r := range results {
		if r.Level == Fail {
			return Fail
		}
		if r.Level == Warn {
			worst = Warn
		}
	}
	return worst
}

// checks are all questions in the order in which they are printed.
func checks() []check {
	return []check{
		{"cluster", "kubernetes-version", []source{sourceVersion}, always, kubernetesVersion},
		{"cluster", "validating-policies", []source{sourceAPIs}, always, validatingPolicies},
		{"cluster", "mutating-policies", []source{sourceAPIs}, always, mutatingPolicies},
		{"install", "installed", []source{sourceDaemonSets}, after, installed},
		{"install", "not-installed-yet", []source{sourceDaemonSets}, before, notInstalledYet},
		{"install", "agents-ready", []source{sourceDaemonSets}, after, agentsReady},
		{"install", "nodes-without-agent", []source{sourceDaemonSets, sourceNodes, sourcePods}, after, nodesWithoutAgent},
		{"install", "agent-versions", []source{sourcePods}, after, agentVersions},
		{"install", "agent-reports", []source{sourcePods}, after, agentReports},
		{"install", "pod-source", []source{sourcePods}, after, podSource},
		{"install", "early-hook", []source{sourcePods}, after, earlyHook},
		{"nodes", "container-runtime", []source{sourceNodes}, always, containerRuntime},
		{"nodes", "kernel", []source{sourceNodes}, always, kernel},
		{"nodes", "operating-system", []source{sourceNodes}, always, operatingSystem},
		{"policies", "policies", []source{sourceAPIs, sourceDaemonSets, sourcePolicies}, after, policies},
		{"mesh", "istio-init", []source{sourcePods}, always, istioInit},
		{"mesh", "injector", []source{sourceIstio, sourceDaemonSets}, always, injector},
		{"mesh", "istio-pods", []source{sourcePods, sourceNamespaces}, always, istioPods},
		{"mesh", "init-containers", []source{sourcePods, sourceNamespaces}, always, initContainers},
		{"mesh", "other-projects", []source{sourceDaemonSets}, always, otherProjects},
		{"mesh", "mesh-ports", []source{sourceIstio, sourceDaemonSets}, always, meshPorts},
		{"mesh", "dual-stack", []source{sourcePods}, always, dualStack},
		{"mesh", "istio-probes", []source{sourcePods, sourceProxies}, always, istioProbes},
		{"mesh", "istio-registries", []source{sourcePods}, always, istioRegistries},
		{"mesh", "node-untaint", []source{sourceIstio, sourceNodes}, always, nodeUntaint},
		{"pods", "pods-programmed", []source{sourcePods, sourceNamespaces, sourceDaemonSets}, after, podsProgrammed},
		{"pods", "proxy-listens", []source{sourcePods}, after, proxyListens},
		{"pods", "pod-settings", []source{sourcePods, sourceNamespaces}, always, podSettings},
		{"pods", "mistyped-keys", []source{sourcePods, sourceNamespaces}, always, mistypedKeys},
		{"pods", "namespaces-without-effect", []source{sourcePods, sourceNamespaces}, after, namespacesWithoutEffect},
		{"proxies", "proxies-unattended", []source{sourceProxies, sourceDaemonSets, sourcePods}, always, proxiesUnattended},
		{"proxies", "proxies-ready", []source{sourceProxies, sourceDaemonSets, sourcePods, sourceNamespaces}, always, proxiesReady},
		{"proxies", "proxy-reports", []source{sourceProxies}, always, proxyReports},
		{"proxies", "proxy-room", []source{sourceProxies, sourcePods, sourceNamespaces}, always, proxyRoom},
		{"proxies", "shared-proxies", []source{sourceProxies, sourceDaemonSets}, always, sharedProxies},
		{"startup taint", "startup-taint", []source{sourceNodes}, always, startupTaint},
		{"startup taint", "autoscaler", []source{sourcePods, sourceDaemonSets}, after, autoscaler},
		{"leftovers", "leftover-cni-entry", []source{sourceEvents, sourcePods}, always, leftoverEntry},
		{"leftovers", "leftover-objects", []source{sourceDaemonSets, sourcePolicies, sourceAPIs}, always, leftoverObjects},
	}
}

// Text is the results for people, by section: the reason, what to do, and where to read on.
func Text(results []Result) string {
	var b strings.Builder
	counts, section := map[Level]int{}, ""
	for _, r := range results {
		counts[r.Level]++
		if r.Section != section {
			if section != "" {
				b.WriteString("\n")
			}
			section = r.Section
			fmt.Fprintf(&b, "%s\n", section)
		}
		fmt.Fprintf(&b, "  %-4s  %s: %s\n", r.Level, r.Check, printable.Line(r.Message))
		if r.Level != OK {
			fmt.Fprintf(&b, "          do:  %s\n          see: %s\n", printable.Line(r.Do), r.Doc)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d warn, %d fail\n", counts[OK], counts[Warn], counts[Fail])
	return b.String()
}

// maxNamed bounds how many names one line has.
const maxNamed = 5

// some names the first few of a list.
func some(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// listed returns the texts of the things that meet a condition.
func listed[T any](all []T, which func(T) bool, text func(T) string) (out []string) {
	for _, one := range all {
		if which(one) {
			out = append(out, text(one))
		}
	}
	return out
}

// names returns the names of the things that meet a condition.
func names[T fmt.Stringer](all []T, which func(T) bool) []string { return listed(all, which, T.String) }

// maxMessage bounds a line: messages repeat what pods' owners wrote.
const maxMessage = 2000
