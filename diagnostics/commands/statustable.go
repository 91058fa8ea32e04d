package commands

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/printable"
)

// shortMessage is the length to which messages are cut in a table that is not wide.
const shortMessage = 100

// statusPrinter prints reports of a cluster.
type statusPrinter struct {
	out          io.Writer
	wide, colour bool
}

func (p statusPrinter) tables(r survey.Report) error {
	if len(r.Nodes) > 0 {
		if err := writeTable(p.out, p.colour, p.nodes(r)); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(p.out)
	}
	if len(r.Pods) > 0 {
		if err := writeTable(p.out, p.colour, p.pods(r)); err != nil {
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
	_, err := fmt.Fprintln(p.out, summary(r))
	return err
}

func (p statusPrinter) nodes(r survey.Report) [][]cell {
	head := plain("NODE", "AGENT", "BACKEND", "HOOKS", "PODS", "TROUBLE")
	if p.wide {
		head = plain("NODE", "AGENT", "BACKEND", "HOOKS", "PODS", "POD OF THE AGENT", "COMMIT", "WRITTEN", "LAST ERROR", "TROUBLE")
	}
	listed := map[string]map[string]int{} // pods by node and state
	for _, pod := range r.Pods {
		if listed[pod.Node] == nil {
			listed[pod.Node] = map[string]int{}
		}
		listed[pod.Node][string(pod.State)]++
	}
	rows := [][]cell{head}
	for _, n := range r.Nodes {
		row := []cell{{text: n.Name}, agentCell(n), {}, {}, podsCell(listed[n.Name])}
		if n.Asking > 0 {
			row[4].text = fmt.Sprintf("%d asking", n.Asking)
		}
		more := plain(n.Agent, "", "", "")
		if s := n.Status; s != nil {
			row[2].text, row[3].text = s.Backend, hooks(n)
			more[1].text, more[2].text = short(s.Revision, 12), age(s.Time, r.Time)
			if e := s.LastError; e != nil {
				more[3].text = fmt.Sprintf("%s ago: %s: %s", age(e.Time, r.Time), e.Pod, e.Message)
			}
		}
		if p.wide {
			row = append(row, more...)
		}
		rows = append(rows, append(row, p.troubleCell(n)))
	}
	return rows
}

func agentCell(n survey.Node) cell {
	switch {
	case n.AgentUnknown:
		return cell{text: "?"}
	case n.Agent == "":
		return cell{text: "none"}
	case n.Status == nil:
		return cell{text: "unknown", colour: yellow}
	}
	return cell{text: n.Status.Version}
}

func hooks(n survey.Node) string {
	words := make([]string, 0, len(n.Status.Hook))
	for _, e := range n.Status.Hook {
		if e.Up {
			words = append(words, e.Name)
		} else {
			words = append(words, e.Name+"(down)")
		}
	}
	return strings.Join(words, ",")
}

func podsCell(count map[string]int) cell {
	c := cell{}
	var words []string
	for _, state := range slices.Sorted(maps.Keys(count)) {
		if count[state] > 0 {
			words = append(words, fmt.Sprintf("%d %s", count[state], state))
		}
		if survey.State(state).Failing() && count[state] > 0 {
			c.colour = red
		}
	}
	c.text = strings.Join(words, ", ")
	return c
}

func (p statusPrinter) troubleCell(n survey.Node) cell {
	c := cell{text: strings.Join(slices.Concat(n.Trouble, n.Notes), "; ")}
	if !p.wide {
		c.text = short(c.text, shortMessage)
	}
	switch {
	case len(n.Trouble) > 0:
		c.colour = red
	case len(n.Notes) > 0:
		c.colour = yellow
	}
	return c
}

func (p statusPrinter) pods(r survey.Report) [][]cell {
	head := plain("NAMESPACE", "NAME", "NODE", "STATE", "HOOK", "AGE", "MESSAGE")
	if p.wide {
		head = plain("NAMESPACE", "NAME", "NODE", "STATE", "HOOK", "AGE", "REPORTED", "BACKEND", "RULES", "MESSAGE")
	}
	rows := [][]cell{head}
	for _, pod := range r.Pods {
		rows = append(rows, p.podRow(pod, r.Time))
	}
	return rows
}

func (p statusPrinter) podRow(pod survey.Pod, now time.Time) []cell {
	row := plain(pod.Namespace, pod.Name, pod.Node, string(pod.State), pod.Hook, age(pod.Created, now))
	row[3].colour = stateColour(pod.State)
	if !p.wide {
		return append(row, cell{text: short(pod.Message, shortMessage)})
	}
	message := pod.Message
	if pod.Notes != "" {
		message = strings.TrimPrefix(message+"; "+pod.Notes, "; ")
	}
	return append(row, plain(age(pod.Reported, now), pod.Backend, pod.SpecHash, message)...)
}

func stateColour(s survey.State) int {
	switch {
	case s.Failing():
		return red
	case s == survey.Waiting:
		return yellow
	case s == survey.Programmed:
		return green
	}
	return 0
}

// summary returns one line that says how many pods are in each state.
func summary(r survey.Report) string {
	where := "in namespace " + r.Namespace
	if r.Namespace == "" {
		where = "in all namespaces"
	}
	if len(r.Pods) == 0 && r.Namespace != "" {
		return "No pod " + where + " asks for redirection, or has a report of the agent; -A shows all namespaces."
	}
	if len(r.Pods) == 0 {
		return "No pod " + where + " asks for redirection, or has a report of the agent."
	}
	count := map[string]int{}
	for _, pod := range r.Pods {
		count[string(pod.State)]++
	}
	return printable.Count(len(r.Pods), "pod") + " " + where + ": " + podsCell(count).text + "."
}
