package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/printable"
)

// NodeFacts is what a look at one node, as root, shows.
type NodeFacts struct {
	Kernel    string
	Nftables  error // why the kernel does not take the agent's rules, or nil
	TProxy    error // the same for pods with interception mode TPROXY
	NRISocket string
	NRI       error  // why nobody can be asked at the socket, or nil
	CNIDir    string // as this process sees it
	Left      Left   // of ours
}

// RunNode asks the checks for a node.
func RunNode(f *NodeFacts) (out []Result) {
	for _, c := range []struct {
		name  string
		found finding
	}{
		{"node-kernel", nodeKernel(f)}, {"node-tproxy", nodeTProxy(f)}, {"node-nri", nodeNRI(f)}, {"node-leftovers", nodeLeftovers(f)},
	} {
		if c.found.level != "" {
			out = append(out, newResult("this node", c.name, c.found))
		}
	}
	return out
}

func nodeKernel(f *NodeFacts) finding {
	switch {
	case f.Nftables != nil:
		return failing("Linux "+f.Kernel+": "+f.Nftables.Error(), "load the modules nf_tables, nft_chain_nat and nft_redir (modprobe), or set redirection.backend=iptables")
	case older(f.Kernel, cookieKernel):
		return fine("Linux " + f.Kernel + " takes the agent's rules by nftables; before " + cookieKernel + " the agent verifies each pod in full, which costs CPU")
	}
	return fine("Linux " + f.Kernel + " takes the agent's rules by nftables")
}

func nodeTProxy(f *NodeFacts) finding {
	switch {
	case f.Nftables != nil:
		return finding{}
	case f.TProxy != nil:
		return warning("the kernel does not take the rules of pods with interception mode TPROXY: "+f.TProxy.Error(), "load the modules nft_tproxy and nft_socket (modprobe), or use REDIRECT")
	}
	return fine("the kernel takes the rules of pods with interception mode TPROXY")
}

func nodeNRI(f *NodeFacts) finding {
	if f.NRI != nil {
		return warning("NRI is not offered: "+f.NRI.Error(), "switch it on in the container runtime (docs/support-matrix.md), or set hooks.cni.mode=install; without both, pods get their rules a moment after their start")
	}
	return fine("the runtime listens for NRI plugins at " + f.NRISocket)
}

func nodeLeftovers(f *NodeFacts) finding {
	l := f.Left
	found := strings.Join(l.all(), "; ")
	switch {
	case len(l.Entries) > 0 && !l.Agent:
		return failing("no agent runs here, so no pod starts, unless hooks.cni.failOpen was set: the node has of one: "+found,
			"istio-pod-network-controller cni uninstall --cni-conf-dir "+f.CNIDir+"; docs/removal.md says how the rest is removed")
	case len(l.Faults) > 0:
		return warning("what the node has of the agent's cannot be looked at: "+some(l.Faults), "run it as root on the node, or with --root in a privileged container")
	case found == "":
		return fine("the node has nothing of the agent's")
	case l.Agent:
		return fine("an agent runs here, and the node has of it: " + found)
	case len(l.Pods) > 0:
		return warning("no agent runs here, and the node has of one: "+found,
			"re-create the pods, whose rules and proxies nobody looks after; docs/removal.md says how the rest is removed")
	}
	return warning("no agent runs here, and the node has of one: "+found, "docs/removal.md says why, and how it is removed; directories in /run go with the node's next start")
}

// maxFile bounds what is read of a file.
const maxFile = 1 << 20

// NodeGatherer looks at the node that it runs on. Root is where the node's files are: / on the node itself.
type NodeGatherer struct {
	Root      string
	NRISocket string
	CNIDir    string
	// Probe returns why the kernel does not take the agent's rules: for ordinary pods, and for pods with mode TPROXY.
	Probe func(ctx context.Context) (ordinary, tproxy error)
	// Rules reports whether a network namespace has rules of ours.
	Rules func(ctx context.Context, path string) (bool, error)
	// Gone reports whether nothing, or no namespace, is at a path.
	Gone func(path string) bool
}

// Gather looks at everything.
func (g NodeGatherer) Gather(ctx context.Context) *NodeFacts {
	f := &NodeFacts{NRISocket: g.NRISocket, CNIDir: g.at(g.CNIDir)}
	f.Nftables, f.TProxy = g.Probe(ctx)
	f.Kernel = strings.TrimSpace(g.text("/proc/sys/kernel/osrelease"))
	f.NRI = g.dial(ctx)
	f.Left = g.left(ctx)
	return f
}

// maxLinks is how many links one path may have, as in the kernel.
const maxLinks = 40

// at returns where this process sees a path of the node. Links lead below Root: the kernel of a container would take an absolute one for its own.
func (g NodeGatherer) at(name string) string {
	at, left := "/", strings.Split(name, "/")
	for links := 0; len(left) > 0; {
		next := path.Join(at, left[0])
		left = left[1:]
		to, err := os.Readlink(filepath.Join(g.Root, next))
		if err != nil || next == "/" || links == maxLinks { // no link, or missing
			at = next
			continue
		}
		if links++; path.IsAbs(to) {
			at = "/"
		}
		left = append(strings.Split(to, "/"), left...)
	}
	return filepath.Join(g.Root, at)
}

// text returns the text of an ordinary file, or "" if it cannot be read.
func (g NodeGatherer) text(path string) string {
	info, err := os.Stat(g.at(path))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return ""
	}
	raw, err := os.ReadFile(g.at(path))
	if err != nil {
		return ""
	}
	return string(raw)
}

// dial connects to the NRI socket and says nothing: the runtime takes that for a plugin that has gone.
func (g NodeGatherer) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", g.at(g.NRISocket))
	if err != nil {
		return err
	}
	return c.Close()
}

// runDirectory is below which the agents of a node keep everything, in memory. ourPlugin is the type of the agent's entry in a CNI chain, and
// pluginFile what hooks.cni.mode=install copies.
const (
	ourPlugin    = "istio-pod-network-cni"
	runDirectory = "/run/istio-pod-network-controller"
	pluginFile   = "/opt/cni/bin/" + ourPlugin
)

// Left is what a node has of ours.
type Left struct {
	// Agent reports whether an agent runs here: then all of it is in use.
	Agent bool
	// Files and Pods (with rules of ours, by their network namespaces) are paths.
	Files, Pods []string
	// Entries are network configurations with the agent's entry.
	Entries []string
	// Proxies are homes of pods' own proxies, by the pods' UIDs, the notes of where rules lead, and profiles of shared proxies.
	Proxies []string
	// Faults are what could not be looked at.
	Faults []string
}

// left looks at the node's files, processes and network namespaces. A namespace or process that ends meanwhile is not left.
func (g NodeGatherer) left(ctx context.Context) (l Left) {
	l.Agent = g.runsAgent()
	if _, err := os.Lstat(g.at(pluginFile)); err == nil {
		l.Files = append(l.Files, pluginFile)
	}
	for _, entry := range g.entries(&l, runDirectory) {
		name := path.Join(runDirectory, entry.Name())
		switch entry.Name() {
		case "kept": // for the next agent; it goes with the node's next start
		case "sidecars", "shared":
			for _, home := range g.entries(&l, name) {
				l.Proxies = append(l.Proxies, path.Join(name, home.Name()))
			}
		default:
			l.Files = append(l.Files, name)
		}
	}
	for _, entry := range g.entries(&l, g.CNIDir) {
		if file := path.Join(g.CNIDir, entry.Name()); slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(file)) && strings.Contains(g.text(file), `"`+ourPlugin+`"`) {
			l.Entries = append(l.Entries, file)
		}
	}
	for _, ns := range g.entries(&l, "/run/netns") {
		at := path.Join("/run/netns", ns.Name())
		seen := filepath.Join(g.at("/run/netns"), ns.Name()) // a link to /proc/PID/ns/net has no path
		switch has, err := g.Rules(ctx, seen); {
		case ctx.Err() != nil:
			l.Faults = append(l.Faults, "network namespaces: "+ctx.Err().Error())
			return l
		case err != nil && g.Gone(seen):
		case err != nil:
			l.Faults = append(l.Faults, at+": "+err.Error())
		case has:
			l.Pods = append(l.Pods, at)
		}
	}
	return l
}

// entries lists a directory, which need not be there, in the order of names.
func (g NodeGatherer) entries(l *Left, dir string) []fs.DirEntry {
	entries, err := os.ReadDir(g.at(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Faults = append(l.Faults, err.Error())
	}
	return entries
}

// runsAgent looks for a process of the agent's program with its first argument. A container's processes are the node's, too.
func (g NodeGatherer) runsAgent() bool {
	found, err := filepath.Glob(g.at("/proc/[0-9]*/cmdline"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(found, func(file string) bool {
		raw, err := os.ReadFile(file)
		argv := strings.Split(string(raw), "\x00")
		return err == nil && len(argv) > 1 && path.Base(argv[0]) == "istio-pod-network-controller" && argv[1] == "run"
	})
}

// all are all of it, by kind, for people.
func (l Left) all() (out []string) {
	for _, kind := range []struct {
		noun  string
		paths []string
	}{{"file", l.Files}, {"CNI entry", l.Entries}, {"proxy directory", l.Proxies}, {"programmed pod", l.Pods}} {
		if len(kind.paths) > 0 {
			out = append(out, fmt.Sprintf("%s (%s)", printable.Count(len(kind.paths), kind.noun), some(kind.paths)))
		}
	}
	return out
}
