package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

// maxValue is how much of a value the text shows; JSON has all of it.
const maxValue = 100

// Text says how a document is written for people. Wide adds rules that have seen no packet, and settings that nobody has set to anything.
type Text struct {
	Now  time.Time
	Wide bool
}

// Print writes a document for people. Nothing in it can move a terminal's cursor: pods write part of it.
func (t Text) Print(w io.Writer, d Document) error {
	p := &printer{out: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), wide: t.Wide}
	p.line("Pod:\t%s", d.Pod)
	p.line("Node:\t%s (agent %s, backend %s)", d.Node, d.Agent.Version, d.Agent.Backend)
	p.source(d.Agent, t.Now)
	p.line("Verdict:\t%s", d.verdict())
	p.line("On the pod:\t%s", d.Reported.words())
	p.asked(d)
	p.programmed(d.Programmed)
	p.others(d)
	p.events(d.Events, t.Now)
	p.title("Next")
	for _, step := range d.Next {
		p.line("  - %s", step)
	}
	return p.out.Flush()
}

// source says what gives the agent its pods, and how old the newest word of it is.
func (p *printer) source(a Agent, now time.Time) {
	switch {
	case a.PodsFrom == "kubelet" && !a.KubeletHeard.IsZero():
		p.line("Pods from:\tthe kubelet, which said something %s ago", now.Sub(a.KubeletHeard).Round(time.Second).String())
	case a.PodsFrom == "api":
		p.line("Pods from:\tthe API server")
	}
}

type printer struct {
	out  *tabwriter.Writer
	wide bool
}

// line writes one line. Tabs of the format separate columns, tabs of arguments do not.
func (p *printer) line(format string, args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = printable.Line(text)
		}
	}
	_, _ = fmt.Fprintf(p.out, format+"\n", args...) // an error comes again with Flush
}

// title ends the columns of the section before.
func (p *printer) title(text string) { p.line("\n%s", text) }

func (p *printer) asked(d Document) {
	p.title("Asked for")
	switch a := d.Asked; {
	case a.Invalid != "":
		p.line("  wrong: %s", a.Invalid)
	case a.Redirect:
		p.line("  redirection, by %s", a.By)
	default:
		p.line("  no redirection: %s", a.Reason)
	}
	for _, line := range d.Asked.Summary {
		p.line("  %s", line)
	}
	if len(d.Asked.Settings) > 0 {
		p.line("")
		p.line("  SETTING\tVALUE\tFROM")
	}
	for _, s := range d.Asked.Settings {
		if p.wide || s.Value != "" || s.Source != "default" {
			p.line("  %s\t%s\t%s", s.Name, short(s.Value), s.Source)
		}
	}
	for _, note := range d.Asked.Notes {
		p.line("  note: %s", note)
	}
}

func (p *printer) programmed(s Programmed) {
	p.title("Programmed")
	switch {
	case s.Absent != "":
		p.line("  not looked at: %s", s.Absent)
	case len(s.Rules) == 0:
		p.line("  no rules of ours")
	default:
		p.line("  CHAIN\tPACKETS\tBYTES\tRULE (by the backend %s)", s.Backend)
	}
	hidden := 0
	for _, r := range s.Rules {
		if !p.wide && r.Packets != nil && *r.Packets == 0 {
			hidden++
			continue
		}
		packets, bytes := r.Counted()
		p.line("  %s\t%s\t%s\t%s", r.Chain, packets, bytes, r.String())
	}
	if hidden > 0 {
		p.line("")
		p.line("  rules that have seen no packet: %d (-o wide shows them)", hidden)
	}
	if s.Held != nil {
		p.line("  held: %d packets of connections that wait for the proxy, or have waited", *s.Held)
	}
	if s.LastRepair != (podreport.Repair{}) {
		p.line("  last repair: %s (%s)", s.LastRepair.Time, s.LastRepair.Kinds)
	}
}

func (p *printer) others(d Document) {
	if len(d.Agreement.Differences) > 0 {
		p.title("Differences (- is missing, + is too much)")
	}
	for _, line := range d.Agreement.Differences {
		p.line("  %s", line)
	}
	p.title("Rules of others")
	o := d.Others
	if o.Owner != "" {
		p.line("  %s redirects this pod's traffic: %s", o.Owner, o.Found)
	}
	for _, line := range o.Preempting {
		p.line("  before ours: %s", line)
	}
	switch {
	case d.Programmed.Absent != "" || d.Agreement.Verdict == Unknown:
		p.line("  not looked at")
	case o.Owner == "" && len(o.Preempting) == 0:
		p.line("  none that redirect or decide before ours")
	}
}

func (p *printer) events(e Events, now time.Time) {
	p.title("Last events")
	switch {
	case e.Error != "":
		p.line("  not read: %s", e.Error)
	case len(e.Items) == 0:
		p.line("  none (the cluster keeps them for an hour)")
	}
	for _, one := range e.Items {
		times := ""
		if one.Count > 1 {
			times = " (" + strconv.Itoa(one.Count) + " times)"
		}
		p.line("  %s ago\t%s\t%s%s\t%s", now.Sub(one.Time).Round(time.Second).String(), one.Type, one.Reason, times, one.Message)
	}
}

// verdict is the answer in one line.
func (d Document) verdict() string {
	switch {
	case d.Programmed.Absent != "":
		return "unknown: " + d.Programmed.Absent
	case d.Agreement.Verdict == Unknown:
		return "unknown: " + d.Agreement.Error
	case d.Agreement.Verdict == Differ && len(d.Programmed.Rules) == 0:
		return "DIFFERS: the pod asks for redirection and has no rules of ours"
	case d.Agreement.Verdict == Differ:
		return "DIFFERS: what is programmed is not what the pod asks for"
	case d.Agreement.Kept:
		return "kept: the pod has the rules that it asked for earlier"
	case d.Asked.Invalid != "":
		return "failed: the pod has a wrong setting, and no rules"
	case d.lacksProxy() && len(d.Programmed.Rules) == 0:
		return "no proxy: the pod has chosen the ProxyProfile " + d.Asked.Profile + ", and has no proxy of it and no rules"
	case d.Others.Owner != "":
		return "left to " + d.Others.Owner + ", which redirects the pod's traffic"
	case d.Asked.Redirect && d.preempted():
		return "preempted: the rules are there, and rules of others decide before them"
	case d.Asked.Redirect && d.lacksProxy():
		return "no proxy: the rules are what the pod asks for, and its proxy is not ready"
	case d.Asked.Redirect && len(d.Programmed.Unheard) > 0:
		return "no listener: the rules are what the pod asks for, and " + d.Programmed.nobodyListens()
	case d.Asked.Redirect && len(d.Others.Preempting) > 0:
		return "in order, with a warning: the rules are what the pod asks for, and foreign rules may decide before them, which is accepted"
	case len(d.Asked.Mistyped) > 0:
		return d.misunderstood()
	case d.Asked.Redirect:
		return "in order: the rules are what the pod asks for"
	}
	return "in order: the pod asks for no rules and has none"
}

// misunderstood is the verdict on a pod that is in order but for a mistyped key.
func (d Document) misunderstood() string {
	whose, has := "pod", "the pod asks for no rules and has none"
	if strings.HasPrefix(d.Asked.Mistyped[0], "namespace ") {
		whose = "namespace"
	}
	if d.Asked.Redirect {
		has = "the rules are what the pod asks for"
	}
	return "not understood: a setting of the " + whose + " has a key that nobody reads; without it " + has
}

// Failing reports whether the pod does not have what it asks for, or that is not known.
func (d Document) Failing() bool {
	return d.Agreement.Verdict != Agree || d.Asked.Invalid != "" || d.preempted() ||
		d.Asked.Expected && !d.Asked.Redirect && !d.Agreement.Kept || d.lacksProxy() || len(d.Programmed.Unheard) > 0
}

func (r Reported) words() string {
	if r == (Reported{}) {
		return "nothing"
	}
	return cmp.Or(r.Status, "no status") + ", condition " + cmp.Or(r.Condition, "not set") + " (" + r.Reason + "): " + r.Message
}

func short(value string) string {
	if value == "" {
		return `""`
	}
	if len(value) > maxValue {
		return strings.ToValidUTF8(value[:maxValue], "") + fmt.Sprintf("... (%d bytes)", len(value))
	}
	return value
}
