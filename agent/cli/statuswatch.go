package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
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
	nodes := differences("node", keyed(before.Nodes, nodeWords), keyed(after.Nodes, nodeWords))
	pods := differences("pod", keyed(before.Pods, podWords), keyed(after.Pods, podWords))
	trouble := differences("trouble", keyed(before.Trouble, sameWords), keyed(after.Trouble, sameWords))
	return slices.Concat(trouble, nodes, pods)
}

func nodeWords(n survey.Node) (name, words string) {
	words = "agent " + agentCell(n).text
	if s := n.Status; s != nil {
		words += " " + s.Backend + ", entrances " + entrances(n)
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

// item is something with a name, and what is said of it.
type item struct{ name, words string }

func keyed[T any](all []T, words func(T) (string, string)) []item {
	out := make([]item, 0, len(all))
	for _, one := range all {
		name, text := words(one)
		out = append(out, item{name, text})
	}
	slices.SortFunc(out, func(a, b item) int { return strings.Compare(a.name, b.name) })
	return out
}

// differences returns a line for each item that came, went, or is said to be different, sorted by name.
func differences(kind string, before, after []item) (lines []string) {
	was, is := map[string]string{}, map[string]string{}
	for _, i := range before {
		was[i.name] = i.words
	}
	for _, i := range after {
		is[i.name] = i.words
		switch words, ok := was[i.name]; {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s %s: %s", kind, i.name, i.words))
		case words != i.words:
			lines = append(lines, fmt.Sprintf("%s %s: %s, was %s", kind, i.name, i.words, words))
		}
	}
	for _, i := range before {
		if _, ok := is[i.name]; !ok {
			lines = append(lines, fmt.Sprintf("%s %s: gone, was %s", kind, i.name, i.words))
		}
	}
	return lines
}
