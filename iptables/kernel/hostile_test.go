package kernel

import (
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// hostileCase is what a process of the pod does to tables that a backend needs. It keeps the backend from using them until end.
type hostileCase struct {
	backend, script, owned, end string
}

// hostileCases open the pod, and keep the backend's programs or the kernel from repairing it.
func hostileCases() map[string]hostileCase {
	const natively = "nft insert rule ip nat CHAIN ct state new accept; nft insert rule ip6 nat CHAIN ct state new accept"
	const ours, outside = "PODNET_OUTBOUND", "OUTPUT"
	empty := func(tables ...string) (text string) {
		for _, t := range tables {
			text += "add table " + t + "\ndelete table " + t + "\nadd table " + t + " { flags owner; }\n"
		}
		return text
	}
	return map[string]hostileCase{
		"iptables, owned tables": {backend: "iptables nft", owned: empty("ip nat", "ip6 nat"), end: "nft 'add table inet x; delete table inet x'"},
		"iptables, native rules in our chain": {
			backend: "iptables nft", script: strings.ReplaceAll(natively, "CHAIN", ours) + "; " + strings.ReplaceAll(natively, "CHAIN", outside),
			end: "nft flush chain ip nat OUTPUT; nft flush chain ip6 nat OUTPUT",
		},
		"iptables, a base chain with the name of one of ours": {
			backend: "iptables nft",
			script: strings.ReplaceAll("nft 'flush chain FAMILY nat OUTPUT; delete chain FAMILY nat PODNET_OUTBOUND; "+
				"add chain FAMILY nat PODNET_OUTBOUND { type nat hook output priority 7; }; add rule FAMILY nat OUTPUT ct state new accept'; ", "FAMILY", "ip"),
			end: "nft flush chain ip nat OUTPUT",
		},
		"iptables, more rules of one family than are read": {
			backend: "iptables legacy",
			script: `awk 'BEGIN { text = sprintf("%250s", ""); gsub(/ /, "x", text); print "*nat\n:MANY - [0:0]"
				for (i = 0; i < 40000; i++) print "-A MANY -p tcp -m comment --comment " text " -j RETURN"
				print "COMMIT" }' | ip6tables-legacy-restore --noflush; iptables-legacy -t nat -F OUTPUT; ip6tables-legacy -t nat -F OUTPUT`,
			end: "ip6tables-legacy -t nat -F MANY",
		},
	}
}

// own runs nft's commands in a process that keeps its socket open until end is called.
func own(t *testing.T, ns *netns.NS, commands string) (end func()) {
	t.Helper()
	kerneltest.NeedOwnedTables(t)
	owner := exec.CommandContext(t.Context(), "nft", "-i")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Inside(owner.Start); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, commands); err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "the tables are owned", func() bool {
		return strings.Count(kerneltest.Shell(t, ns, "nft list ruleset", ""), "flags owner") == strings.Count(commands, "flags owner")
	})
	return func() {
		_ = in.Close()
		_ = owner.Wait()
	}
}

// answers connects out of the pod and into it, in both families.
func answers(t *testing.T, pod, world *netns.NS) (all []string) {
	t.Helper()
	for _, s := range []struct {
		from *netns.NS
		dst  string
	}{{pod, kerneltest.Outside4 + ":80"}, {pod, "[" + kerneltest.Outside6 + "]:80"}, {world, kerneltest.Pod4 + ":8080"}, {world, "[" + kerneltest.Pod6 + "]:8080"}} {
		got, _ := kerneltest.Dial(t.Context(), s.from, kerneltest.App, "", s.dst)
		all = append(all, got.Banner)
	}
	return all
}

func captured(t *testing.T, pod, world *netns.NS) bool {
	t.Helper()
	return slices.Equal(answers(t, pod, world), []string{"PROXY:15001", "PROXY:15001", "PROXY:15006", "PROXY:15006"})
}

// hostilePod is a pod with the rules of an ordinary one.
type hostilePod struct {
	e          Backend
	pod, world *netns.NS
	want       iptables.Ruleset
}

func newHostilePod(t *testing.T, backend string) hostilePod {
	t.Helper()
	p := hostilePod{e: allBackends(t)[backend]}
	p.pod, p.world = kerneltest.NewPod(t)
	kerneltest.Listen(t, p.pod, kerneltest.Proxy, "PROXY", 15001, 15006)
	kerneltest.Listen(t, p.pod, kerneltest.App, "APP", 8080)
	kerneltest.Listen(t, p.world, kerneltest.App, "WORLD", 80)
	var err error
	if p.want, err = iptables.Rules(iptables.DefaultSpec()); err != nil {
		t.Fatal(err)
	}
	return p
}

// apply wants connections to be captured afterwards.
func (p hostilePod) apply(t *testing.T, changes bool) {
	t.Helper()
	out, err := p.e.Apply(t.Context(), at(p.pod), p.want)
	if err != nil || out.Changed() != changes || !captured(t, p.pod, p.world) {
		t.Errorf("changed %q, error %v, answered by %q", out.Drift, err, answers(t, p.pod, p.world))
	}
}

// heldBy wants a backend's rules.
func (p hostilePod) heldBy(t *testing.T, backend string) {
	t.Helper()
	drift, errDrift := driftOf(t, p.e, p.pod, p.want)
	have, _, err := p.e.List(t.Context(), at(p.pod))
	if err := errors.Join(err, errDrift); err != nil || len(drift) > 0 || have.Backend != backend || len(have.Lines) == 0 {
		t.Errorf("drift %s, %d lines of backend %q, want %q: %v", drift, len(have.Lines), have.Backend, backend, err)
	}
}

// Whatever a process of the pod does to the tables, the next call captures again, and says nothing more once nothing changes.
func TestApply_podKeepsTablesFromUse_connectionsAreCaptured(t *testing.T) {
	for name, c := range hostileCases() {
		t.Run(name, func(t *testing.T) {
			p := newHostilePod(t, c.backend)
			p.apply(t, true)
			end := func() {}
			if c.owned != "" {
				end = own(t, p.pod, c.owned)
			}
			mustRun(t, p.pod, c.script)
			if got := answers(t, p.pod, p.world); got[0] != "WORLD:80" {
				t.Fatalf("answered by %q: the pod is not open", got)
			}
			for _, changes := range []bool{true, false, false} {
				p.apply(t, changes)
			}
			p.heldBy(t, Nftables)
			end()
			mustRun(t, p.pod, c.end)
			if _, err := p.e.Apply(t.Context(), at(p.pod), p.want); err != nil {
				t.Fatal(err)
			}
			p.apply(t, false)
			p.heldBy(t, p.e.Name())
			removed, err := p.e.Remove(t.Context(), at(p.pod))
			if got := ours(t, p.pod); err != nil || !removed || got != "" {
				t.Errorf("removed %v, error %v, left %q", removed, err, got)
			}
		})
	}
}

// A chain of the owned table may come before ours.
func TestApply_chainsOfTheOwnedTableComeFirst_areReported(t *testing.T) {
	e, ns := allBackends(t)["nftables"], kerneltest.New(t)
	defer own(t, ns, "add table inet "+iptables.TableName+" { flags owner; }\nadd chain inet "+iptables.TableName+
		" c { type filter hook output priority -310; policy drop; }\n")()
	out, err := e.Apply(t.Context(), at(ns), tproxyRules(t))
	if err != nil || len(out.Preempted) != 1 || !strings.Contains(out.Preempted[0], "table inet "+iptables.TableName+", chain c") {
		t.Errorf("preempted %q, error %v", out.Preempted, err)
	}
}
