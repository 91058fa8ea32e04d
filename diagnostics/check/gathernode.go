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

func (g NodeGatherer) at(path string) string { return filepath.Join(g.Root, path) }

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
// pluginFile what cni=install copies.
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
		switch has, err := g.Rules(ctx, g.at(at)); {
		case ctx.Err() != nil:
			l.Faults = append(l.Faults, "network namespaces: "+ctx.Err().Error())
			return l
		case g.gone(at):
		case err != nil:
			l.Faults = append(l.Faults, at+": "+err.Error())
		case has:
			l.Pods = append(l.Pods, at)
		}
	}
	return l
}

// gone reports whether a file has gone, or a namespace's name has been unmounted and is an ordinary file.
func (g NodeGatherer) gone(file string) bool {
	_, err := os.Lstat(g.at(file))
	return errors.Is(err, fs.ErrNotExist)
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
