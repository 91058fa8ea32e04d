package commands

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/printable"
)

// statusPrinter prints reports of a cluster.
type statusPrinter struct {
	out  io.Writer
	wide bool
	all  survey.Report // of which parts are shown
}

func (p statusPrinter) tables(r survey.Report, problems bool) error {
	for _, table := range [][][]string{p.nodes(r), p.pods(r)} {
		if len(table) == 1 { // the head
			continue
		}
		if err := writeTable(p.out, table, columnsOf(p.out)); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(p.out)
	}
	for _, line := range r.Missing {
		_, _ = fmt.Fprintln(p.out, "not shown:", shown(line))
	}
	for _, line := range r.Trouble {
		_, _ = fmt.Fprintln(p.out, "trouble:", shown(line))
	}
	line := summary(p.all)
	if problems {
		line += " Problems: " + printable.Count(len(r.Pods), "pod") + ", " + printable.Count(len(r.Nodes), "node") + "."
	}
	_, err := fmt.Fprintln(p.out, line)
	return err
}

// narrow leaves some columns to -o wide.
func (p statusPrinter) narrow(table [][]string, from, to int) [][]string {
	if p.wide {
		return table
	}
	for i, row := range table {
		table[i] = slices.Delete(row, from, to)
	}
	return table
}

func (p statusPrinter) nodes(r survey.Report) [][]string {
	here := map[string][]survey.Pod{}
	for _, pod := range p.all.Pods {
		here[pod.Node] = append(here[pod.Node], pod)
	}
	rows := [][]string{{"NODE", "AGENT", "BACKEND", "HOOKS", "PODS", "PODS FROM", "POD OF THE AGENT", "COMMIT", "WRITTEN", "TROUBLE"}}
	for _, n := range r.Nodes {
		var backend, up, from, commit, written string
		trouble := strings.Join(slices.Concat(n.Trouble, n.Notes), "; ")
		if s := n.Status; s != nil {
			backend, up, from, commit, written = s.Backend, hooks(n), s.PodsFrom, printable.Short(s.Revision, 12), age(s.Time, r.Time)
			if e := s.LastError; e != nil && p.wide {
				trouble = printable.Joined(trouble, fmt.Sprintf("last error %s ago: %s: %s", age(e.Time, r.Time), e.Pod, e.Message))
			}
		}
		pods := byState(here[n.Name])
		if n.Asking > 0 {
			pods = fmt.Sprintf("%d asking", n.Asking)
		}
		rows = append(rows, []string{n.Name, agentWord(n), backend, up, pods, from, n.Agent, commit, written, trouble})
	}
	return p.narrow(rows, 5, 9)
}

func agentWord(n survey.Node) string {
	switch {
	case n.AgentUnknown:
		return "?"
	case n.Agent == "":
		return "none"
	case n.Status == nil:
		return "unknown"
	}
	return n.Status.Version
}

func hooks(n survey.Node) string {
	words := make([]string, 0, len(n.Status.Hook))
	for _, e := range n.Status.Hook {
		switch {
		case e.Up:
			words = append(words, e.Name)
		case n.Settling:
			words = append(words, e.Name+"(?)")
		default:
			words = append(words, e.Name+"(down)")
		}
	}
	return strings.Join(words, ",")
}

// byState says how many pods are in each state.
func byState(pods []survey.Pod) string {
	count := map[survey.State]int{}
	for _, pod := range pods {
		count[pod.State]++
	}
	var words []string
	for _, state := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%d %s", count[state], state))
	}
	return strings.Join(words, ", ")
}

func (p statusPrinter) pods(r survey.Report) [][]string {
	rows := [][]string{{"NAMESPACE", "NAME", "NODE", "STATE", "HOOK", "AGE", "REPORTED", "BACKEND", "RULES", "HELD", "LATE", "MESSAGE"}}
	for _, pod := range r.Pods {
		rows = append(rows, []string{
			pod.Namespace, pod.Name, pod.Node, string(pod.State), pod.Hook, age(pod.Created, r.Time),
			age(pod.Reported, r.Time), pod.Backend, pod.SpecHash, pod.Held, pod.Late, printable.Joined(pod.Message, pod.Notes),
		})
	}
	return p.narrow(rows, 6, 11)
}

// summary returns one line that says how many pods are in each state.
func summary(r survey.Report) string {
	where, more := "in namespace "+r.Namespace, "; -A shows all namespaces"
	if r.Namespace == "" {
		where, more = "in all namespaces", ""
	}
	if len(r.Pods) == 0 {
		return "No pod " + where + " asks for redirection, or has a report of the agent" + more + "."
	}
	return printable.Count(len(r.Pods), "pod") + " " + where + ": " + byState(r.Pods) + "."
}
