package main

import "strings"

// Cell is one thing to run, by a target or script that anyone can start by hand.
type Cell struct {
	Name string
	// Shows is what the page says of it.
	Shows string
	// Command is run in the checkout, with more variables.
	Command   []string
	Variables []string
	// Kernel is a version whose report says more than passed or failed.
	Kernel string
	// Testless cells are not made of tests. The others fail if no test has passed: a pattern that matches nothing would pass.
	Testless bool
	Inputs   Inputs
}

const (
	product = ". ./cmd/..."
	kit     = "chart/ hack/build.sh hack/cluster/ hack/go. hack/deploy.sh hack/e2e.sh hack/quick.sh test/e2e/"
)

// cells lists all cells.
func cells() []Cell {
	list := []Cell{
		{
			Name: "mutate", Shows: "tests notice each change of the code that makes rules", Command: []string{"make", "mutate"}, Testless: true,
			Inputs: Inputs{Packages: "./iptables ./test/interpreter", Tests: true, Paths: "hack/tools/mutate/"},
		},
		{
			Name: "race", Shows: "the tests of every package with the race detector", Command: []string{"make", "test-go"}, Variables: []string{"RACE=all"},
			Inputs: Inputs{Packages: "./...", Tests: true, Paths: "hack/quick.sh hack/test.sh"},
		},
		{
			Name: "fuzz", Shows: "each fuzz target for ten seconds", Command: []string{"make", "fuzz", "FUZZTIME=10s"}, Testless: true,
			Inputs: Inputs{Packages: "./internal/intent ./internal/rawnetlink ./iptables/... ./runtime/... ./sidecars/profile ./sidecars/template", Tests: true, Paths: "hack/tools/fuzz.sh"},
		},
		{
			Name: "release-check", Shows: "two builds of the release are equal, and its programs run on all architectures", Command: []string{"make", "release-check"}, Testless: true,
			Inputs: Inputs{Packages: product + " ./diagnostics/...", Paths: "LICENSE chart/ cmd/kubectl-pod_network/ config/samples/pod.yaml hack/cluster/ hack/go. hack/krew.yaml hack/release.sh hack/tools/programs/ hack/tools/vuln.sh"},
		},
		{
			Name: "istio", Shows: "pods as real Istio injects them, before and after a migration", Command: []string{"make", "test-istio"},
			Inputs: Inputs{Packages: "./diagnostics/check ./sidecars/istio ./test/kerneltest", Paths: "config/samples/istio-operator.yaml hack/istio.sh test/e2e/go. test/e2e/xdsenvoy/ test/istio/"},
		},
		{
			Name: "bench-small", Shows: "each benchmark without a cluster, once and small", Command: []string{"make", "bench-small"}, Testless: true,
			Inputs: Inputs{Packages: product + " ./iptables/kernel ./test/standins/...", Paths: "hack/bench hack/cluster/ hack/go."},
		},
		{
			// Everything else that `make test` and `make demo` read is tested by CI, with warm caches.
			Name: "fresh-cold", Shows: "`make test` and `make demo` on a bare Debian where nothing was ever built", Command: []string{"make", "fresh"},
			Variables: []string{"FRESH_COLD=1"},
			Inputs: Inputs{Paths: "Makefile cmd/kubectl-pod_network/go. go.mod go.sum hack/build.sh hack/cluster/ hack/demo hack/deploy.sh hack/fresh.sh hack/go. " +
				"hack/preflight.sh hack/quick.sh hack/test.sh test/e2e/go."},
		},
	}
	for _, version := range []string{"1.7.35", "2.1.9", "2.2.5", "2.2.9", "2.3.7"} {
		list = append(list, Cell{
			Name: "containerd-" + version, Shows: "refusals by NRI, a restart behind them, and a plugin that registers while pods start, with containerd " + version,
			Command: []string{"make", "test-runtimes", "VERSIONS=" + version},
			Inputs:  Inputs{Packages: "./runtime/nri ./agent ./test/realruntimes", Tests: true, Paths: "hack/cluster/ hack/go. hack/quick.sh hack/test.sh"},
		})
	}
	return append(append(list, clusterCells()...), kernelCells()...)
}

// clusterCells are rounds of the end-to-end tests.
func clusterCells() []Cell {
	var list []Cell
	for _, name := range []string{"nftables", "iptables", "nri", "required", "powercut", "wait", "cni", "lifecycle", "istio", "nodes"} {
		list = append(list, round(name, Cell{Name: "e2e-" + name, Shows: "the end-to-end tests, round " + name}))
	}
	list = append(list, round("nri", Cell{
		Name: "e2e-bench", Shows: "each benchmark in the cluster, once and small", Command: []string{"hack/e2e.sh", "-test.run", "^$"},
		Variables: []string{"E2E_BENCH=small", "E2E_BACKENDS=nftables"}, Testless: true,
	}))
	for _, variables := range [][]string{
		{"E2E_KUBERNETES=1.34.4"},
		{"E2E_KUBERNETES=1.35.4"},
		{"E2E_KUBERNETES=1.36.3"},
		{"E2E_PODS=kubelet", "E2E_BURST=235"}, // as many pods at once as the node takes
		{"E2E_PODS=api", "E2E_VALUES=--set pods.readAsNode=true"},
		{"E2E_CONTAINERD=1.7.35"},
		{"E2E_CONTAINERD=2.3.7"},
	} {
		name := strings.ToLower(strings.NewReplacer("E2E_", "e2e-", "=", "-").Replace(variables[0]))
		list = append(list, round("nri", Cell{Name: name, Shows: "the end-to-end tests, round nri, with " + strings.Join(variables, " "), Variables: variables}))
	}
	return append(list,
		round("kubernetes", Cell{
			Name: "e2e-upgrade-1.36.3", Shows: "Kubernetes goes over from 1.36.3 to the kit's release under load", Variables: []string{"E2E_KUBERNETES=1.36.3"},
		}),
		round("nftables", Cell{Name: "e2e-crio-nftables", Shows: "the end-to-end tests on CRI-O, backend nftables", Variables: []string{"E2E_RUNTIME=crio"}}),
		round("nri", Cell{Name: "e2e-crio-nri", Shows: "the end-to-end tests on CRI-O, round nri", Variables: []string{"E2E_RUNTIME=crio"}}),
		emulation("cluster-vm-6.12", ""),
		emulation("cluster-vm-6.12-selinux", " where SELinux enforces", "E2E_SECURITY=selinux", "E2E_VALUES=--set agent.seLinuxOptions.type=spc_t"),
		emulation("cluster-vm-6.12-apparmor", " where AppArmor enforces", "E2E_SECURITY=apparmor"),
		round("powercut", Cell{
			Name: "powercut", Shows: "twenty power cuts of the one-node cluster", Command: []string{"make", "powercut"}, Inputs: Inputs{Paths: "hack/powercut.sh"},
		}),
		round("required", Cell{
			Name: "chaos", Shows: "ten minutes of chaos on the one-node cluster", Command: []string{"make", "chaos"}, Inputs: Inputs{Paths: "hack/chaos.sh"},
		}))
}

// emulation is a cell with the end-to-end tests that show the most for their time, in a virtual machine.
func emulation(name, where string, more ...string) Cell {
	tests := "TestBurstNoFirstConnectionBypassesTheProxy|TestPodsAndProxiesAreConfined|TestProxyProfilePausedUpgradesNobody|TestSidecarTakesTheConnectionsOfAPlainPod"
	return round("nri", Cell{
		Name: name, Command: []string{"hack/e2e.sh", "-test.run", "^(" + tests + ")$"},
		Shows:     "the one-node cluster on Linux 6.12 with cgroup v2 alone, in a virtual machine" + where + ": first packets by NRI, and a managed proxy that is upgraded",
		Variables: append([]string{"E2E_KERNEL=6.12", "E2E_BURST=4"}, more...), Inputs: Inputs{Paths: "hack/kernels/"},
	})
}

// round completes a cell that is one round of the end-to-end tests. Pages are inputs of the rounds that run their commands.
func round(name string, c Cell) Cell {
	backend, hook, pages, helm := "none", name, "", "4" // CI has Helm 3
	switch name {
	case "nftables", "iptables":
		backend, hook, pages = name, "", "docs/quick-start.md hack/demo/bookinfo.yaml"
	case "nri":
		pages = "docs/managed-proxies-shared.md docs/migrate-2018-controller.md docs/troubleshooting.md config/samples/ config/samples/README.md test/conformance/testdata/istio/"
	case "lifecycle":
		helm = "3" // and goes over to Helm 4
	case "istio":
		pages = "docs/istio-outside-the-pod.md docs/migrate-istio-cni.md docs/migrate-istio-init.md hack/istio.sh test/istio/go."
	}
	if c.Command == nil {
		c.Command = []string{"hack/e2e.sh"}
	}
	// Of a variable that is there twice the last counts.
	c.Variables = append([]string{"E2E_BACKENDS=" + backend, "E2E_HOOKS=" + hook, "E2E_HELM=" + helm}, c.Variables...)
	c.Inputs = Inputs{Packages: product, Paths: strings.Join([]string{kit, pages, c.Inputs.Paths}, " ")}
	return c
}

// kernelCells have the tests that program the kernel in parts of a boot and some minutes, so that little is lost when a run is cut off.
func kernelCells() []Cell {
	var list []Cell
	for _, kernel := range []string{"5.10", "6.1", "6.12", "s390x", "arm64"} {
		for _, part := range [][3]string{
			{"nftables", "namespaces, routes and the nftables backend", "./internal/netns ./internal/rawnetlink ./iptables/routing ./iptables/nftables"},
			{"iptables", "the iptables backend and foreign rules", "./iptables/foreign ./iptables/xtables"},
			{"backends", "backends beside and behind each other", "./internal/redirection ./iptables/kernel ./iptables/parking"},
			{"traffic", "connections through the rules", "./test/conformance ./test/interpreter"},
			{"agent", "the agent, its proxies and the commands", "./internal/serving ./agent/... ./sidecars/... ./diagnostics/... ./cmd/..."},
		} {
			if part[0] == "agent" && kernel[0] > '9' { // an emulated processor is slow: only what programs the kernel
				continue
			}
			list = append(list, Cell{
				Name: "kernel-" + kernel + "-" + part[0], Shows: part[1] + " on Linux " + kernel, Kernel: kernel,
				Command: []string{"make", "test-kernels", "KERNELS=" + kernel, "PACKAGES=" + part[2]},
				Inputs:  Inputs{Packages: part[2], Tests: true, Paths: "hack/kernels/ config/samples/"},
			})
		}
	}
	return append(list, Cell{
		Name: "kernel-6.1-noipv6", Shows: "every mode and backend on Linux 6.1 without IPv6", Kernel: "6.1",
		Command: []string{"make", "test-kernels", "KERNELS=6.1", "PACKAGES=./iptables/kernel", "TESTS=^TestEveryMode", "APPEND=ipv6.disable=1"},
		Inputs:  Inputs{Packages: "./iptables/kernel", Tests: true, Paths: "hack/kernels/"},
	})
}
