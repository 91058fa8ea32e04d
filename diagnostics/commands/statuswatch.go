package commands

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"istio-pod-network-controller/diagnostics/survey"
)

const (
	// watchEvery is the least time between two looks of --watch.
	watchEvery = 2 * time.Second
	// watchShare is how many times as long as a look took there is none: a look at a large cluster is work for its API server.
	watchShare = 10
)

// watchStatus prints what changes until ctx ends, and returns the last report. A look that fails is tried again.
func watchStatus(ctx context.Context, p statusPrinter, errOut io.Writer, last survey.Report, look func(context.Context) (survey.Report, error)) survey.Report {
	pause, failed := watchEvery, false
	for {
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pause):
		}
		began := time.Now()
		now, err := look(ctx)
		pause = max(watchEvery, watchShare*time.Since(began))
		if err != nil {
			if !failed && ctx.Err() == nil {
				_, _ = fmt.Fprintln(errOut, "not asked, and tried again:", err)
			}
			failed = true
			continue
		}
		failed = false
		for _, line := range changes(last, now) {
			_, _ = fmt.Fprintln(p.out, now.Time.Local().Format(time.TimeOnly), shown(line))
		}
		last = now
	}
}

// changes returns a line for each node and pod that differs between two reports.
func changes(before, after survey.Report) []string {
	return slices.Concat(
		differences("trouble", before.Trouble, after.Trouble, sameWords),
		differences("node", before.Nodes, after.Nodes, nodeWords),
		differences("pod", before.Pods, after.Pods, podWords),
	)
}

func nodeWords(n survey.Node) (name, words string) {
	words = "agent " + agentCell(n).text
	if s := n.Status; s != nil {
		words += " " + s.Backend + ", hooks " + hooks(n)
	}
	for _, t := range n.Trouble {
		words += "; " + t
	}
	return n.Name, words
}

func podWords(p survey.Pod) (name, words string) {
	words = string(p.State)
	if p.Message != "" {
		words += " (" + p.Message + ")"
	}
	return p.Namespace + "/" + p.Name, words
}

func sameWords(s string) (name, words string) { return s, "yes" }

// differences returns a line for each thing that came, changed or went, by name. words returns a thing's name and what is said of it.
func differences[T any](kind string, before, after []T, words func(T) (name, said string)) (lines []string) {
	was, is := byName(before, words), byName(after, words)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		switch old, ok := was[name]; {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s %s: %s", kind, name, is[name]))
		case old != is[name]:
			lines = append(lines, fmt.Sprintf("%s %s: %s, was %s", kind, name, is[name], old))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, ok := is[name]; !ok {
			lines = append(lines, fmt.Sprintf("%s %s: gone, was %s", kind, name, was[name]))
		}
	}
	return lines
}

func byName[T any](all []T, words func(T) (name, said string)) map[string]string {
	out := map[string]string{}
	for _, one := range all {
		name, said := words(one)
		out[name] = said
	}
	return out
}
