package main

import (
	"fmt"
	"slices"
	"strings"
)

// Cell is one thing to run, by a target or script that anyone can start by hand.
type Cell struct {
	Name string
	// Shows is what the table says of it.
	Shows string
	// Command is run in the checkout, with more variables.
	Command   []string
	Variables []string
	// Kernel is a version whose report says more than passed or failed.
	Kernel string
	// Quick cells together take some minutes.
	Quick bool
}

// cells lists all cells, cheap ones first: what `make test` and `make e2e` do not run.
func cells() []Cell {
	var list []Cell
	for _, kernel := range []string{"5.10", "6.1", "6.12"} {
		for _, part := range parts() {
			list = append(list, Cell{
				Name: "kernel-" + kernel + "-" + part.name, Shows: part.shows + " on Linux " + kernel, Kernel: kernel,
				Quick:   part.quick && kernel != "6.1", // the oldest and the newest
				Command: []string{"make", "test-kernels", "KERNELS=" + kernel, "PACKAGES=" + part.packages},
			})
		}
	}
	for _, version := range []string{"1.7.35", "2.1.9", "2.2.5", "2.2.9", "2.3.7"} {
		list = append(list, Cell{
			Name: "containerd-" + version, Shows: "refusals by NRI, and a restart behind them, with containerd " + version,
			Command: []string{"make", "test-runtimes", "VERSIONS=" + version},
		})
	}
	for _, version := range []string{"1.34.4", "1.35.4", "1.36.3"} {
		list = append(list, cluster("kubernetes-"+version, "the end-to-end tests, round nri, on Kubernetes "+version,
			"E2E_KUBERNETES="+version, "E2E_BACKENDS=none", "E2E_HOOKS=nri"))
	}
	list = append(list, cluster("upgrade-1.36.3", "Kubernetes goes over from 1.36.3 to the kit's release under load",
		"E2E_KUBERNETES=1.36.3", "E2E_BACKENDS=none", "E2E_HOOKS=kubernetes"))
	for _, version := range []string{"1.7.35", "2.3.7"} {
		list = append(list, cluster("containerd-"+version, "the end-to-end tests, round nri, on containerd "+version,
			"E2E_CONTAINERD="+version, "E2E_BACKENDS=none", "E2E_HOOKS=nri"))
	}
	list = append(list,
		cluster("crio-nftables", "the end-to-end tests on CRI-O, backend nftables", "E2E_RUNTIME=crio", "E2E_BACKENDS=nftables", "E2E_HOOKS="),
		cluster("crio-nri", "the end-to-end tests on CRI-O, round nri", "E2E_RUNTIME=crio", "E2E_BACKENDS=none", "E2E_HOOKS=nri"))
	return append(list, Cell{
		Name: "cluster-vm-6.12", Command: []string{"hack/e2e.sh", "-test.run", "^(" + strings.Join(emulated(), "|") + ")$"},
		Shows:     "the one-node cluster on Linux 6.12 with cgroup v2 alone, in a virtual machine: first packets by NRI, and a managed proxy that is upgraded",
		Variables: []string{"E2E_KERNEL=6.12", "E2E_BURST=4", "E2E_BACKENDS=none", "E2E_HOOKS=nri"},
	})
}

// emulated are end-to-end tests that show the most for their time.
func emulated() []string {
	return []string{"TestBurstNoFirstConnectionBypassesTheProxy", "TestSidecarTakesTheConnectionsOfAPlainPod", "TestProxyProfilePausedUpgradesNobody"}
}

// part is a part of the tests that program the kernel: a boot and some minutes, so that what is cut off is little.
type part struct {
	name, shows, packages string
	quick                 bool
}

func parts() []part {
	return []part{
		{"nftables", "namespaces, routes and the nftables backend", "./internal/netns ./internal/rawnetlink ./iptables/routing ./iptables/nftables", true},
		{"iptables", "the iptables backend and foreign rules", "./iptables/foreign ./iptables/xtables", false},
		{"backends", "backends beside and behind each other", "./internal/redirection ./iptables/kernel", false},
		{"traffic", "connections through the rules", "./test/...", false},
		{"agent", "the agent, its proxies and the commands", "./internal/serving ./agent/... ./sidecars/... ./diagnostics/... ./cmd/...", false},
	}
}

// cluster is a cell with rounds of the end-to-end tests.
func cluster(name, shows string, variables ...string) Cell {
	return Cell{Name: "e2e-" + name, Shows: shows, Command: []string{"hack/e2e.sh"}, Variables: variables}
}

// choose returns the cells that a list of words names: all, quick, or cells and beginnings of their names.
func choose(list []Cell, words string) ([]Cell, error) {
	var chosen []Cell
	for word := range strings.FieldsSeq(words) {
		before := len(chosen)
		for _, c := range list {
			fits := c.Quick && word == "quick" || word == "all" || c.Name == word || strings.HasPrefix(c.Name, word+"-")
			if fits && !slices.ContainsFunc(chosen, func(other Cell) bool { return other.Name == c.Name }) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("no cell %q: there are %s", word, names(list))
		}
	}
	return chosen, nil
}

func names(list []Cell) string {
	all := []string{"all", "quick"}
	for _, c := range list {
		all = append(all, c.Name)
	}
	return strings.Join(all, ", ")
}
