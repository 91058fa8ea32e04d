package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/printable"
)

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
	if g.Rules == nil {
		return l
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
