package inspectserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

// Bounds of one answer: how long it may take with all that it waits for, and how many pods are looked at in parallel.
const (
	timeout = 5 * time.Second
	atOnce  = 2
	// busyPatience and busyPause are how long, and how often, a pod that is being programmed is tried again.
	busyPatience = time.Second
	busyPause    = 50 * time.Millisecond
)

// Kernel reads what a namespace holds.
type Kernel interface {
	Look(ctx context.Context, at podnet.Place, want *iptables.Ruleset) (kernel.Held, error)
	Unheard(ctx context.Context, at podnet.Place, ports []uint16) ([]uint16, error)
}

// Core is the core's knowledge of pods.
type Core interface {
	Look(ctx context.Context, s podnet.Sandbox, read func(context.Context, controllers.Looked) error) error
}

// Looker makes documents:
//
//   - the pod is in the watch cache, so on this node; the API server is not asked about it;
//   - at most atOnce pods are looked at in parallel, by visits of their own;
//   - nothing waits for a look, and a look waits for nothing but its place in the line: see controllers.Programmer.Look.
type Looker struct {
	node, agentNamespace string
	agent                func() inspect.Agent
	core                 func() (Core, client.Reader, error)
	reader               Kernel
	line                 chan struct{}
}

// NewLooker returns a Looker of a node. core returns an error as long as the agent has not read its pods, and a reader of the watch cache only: a
// caller must not be able to make the agent ask the API server for any pod.
func NewLooker(node, agentNamespace string, by func() inspect.Agent, reader Kernel, core func() (Core, client.Reader, error)) *Looker {
	return &Looker{
		node: node, agentNamespace: agentNamespace, agent: by, core: core, reader: reader, line: make(chan struct{}, atOnce),
	}
}

// Document returns the document of a pod, or a *inspect.Refusal.
func (l *Looker) Document(ctx context.Context, namespace, name string) (doc inspect.Document, err error) {
	core, pod, err := l.find(ctx, namespace, name)
	if err != nil {
		return doc, err
	}
	select {
	case l.line <- struct{}{}:
		defer func() { <-l.line }()
	case <-ctx.Done():
		return doc, &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "the agent of node " + l.node + " is answering others: try again in some seconds"}
	}
	s := podnet.Sandbox{Namespace: namespace, Name: name, UID: string(pod.UID)}
	err = outlast(ctx, func() error {
		return core.Look(ctx, s, func(ctx context.Context, looked controllers.Looked) error {
			doc = l.describe(ctx, looked)
			return ctx.Err()
		})
	})
	if err != nil {
		return doc, l.refusal(namespace, name, err)
	}
	return doc, nil
}

// find returns a pod of this node, and what knows more of it, or a *inspect.Refusal.
func (l *Looker) find(ctx context.Context, namespace, name string) (Core, *corev1.Pod, error) {
	if namespace == l.agentNamespace {
		return nil, nil, &inspect.Refusal{Code: http.StatusForbidden, Message: "pods of the agent's own namespace are never redirected, and not shown"}
	}
	core, pods, err := l.core()
	if err != nil {
		return nil, nil, &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "the agent of node " + l.node + " has not read its pods yet: try again in some seconds"}
	}
	pod := &corev1.Pod{}
	if err := pods.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
		return nil, nil, l.refusal(namespace, name, err)
	}
	return core, pod, nil
}

// outlast calls look again for as long as busyPatience if the pod is busy: most calls of Ensure take a millisecond.
func outlast(ctx context.Context, look func() error) (err error) {
	_ = wait.PollUntilContextTimeout(ctx, busyPause, busyPatience, true, func(context.Context) (done bool, _ error) { // which returns less than look
		err = look()
		return !errors.Is(err, controllers.ErrBusy), nil
	})
	return err
}

func (l *Looker) refusal(namespace, name string, err error) *inspect.Refusal {
	pod := namespace + "/" + name
	switch {
	case errors.Is(err, podnet.ErrNoPod), apierrors.IsNotFound(err):
		return &inspect.Refusal{Code: http.StatusNotFound, Message: fmt.Sprintf("the agent of node %s knows no pod %s: it was deleted, or moved, or is too new; try again in a second", l.node, pod)}
	case errors.Is(err, controllers.ErrBusy), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: fmt.Sprintf("the agent of node %s is working on pod %s right now: try again in a second", l.node, pod)}
	}
	return &inspect.Refusal{Code: http.StatusInternalServerError, Message: fmt.Sprintf("the agent of node %s could not look at pod %s: %v", l.node, pod, err)}
}

// describe reads the kernel, and says what there is.
func (l *Looker) describe(ctx context.Context, looked controllers.Looked) inspect.Document {
	doc := inspect.Document{
		Pod: looked.Pod.Namespace + "/" + looked.Pod.Name, UID: string(looked.Pod.UID), Node: l.node, Time: time.Now().UTC().Truncate(time.Second),
		Agent: l.agent(), Asked: askedBy(looked), Reported: reportedOn(looked.Pod),
		Programmed: inspect.Programmed{
			Sandbox: looked.Sandbox.ID, Rules: []iptables.Line{}, LastRepair: looked.Entry.LastRepair,
		},
		Events: inspect.Events{Items: []inspect.Event{}},
	}
	if looked.Absent != nil {
		doc.Programmed.Absent = looked.Absent.Error()
		doc.Agreement = inspect.Agreement{Verdict: inspect.Unknown, Error: doc.Programmed.Absent}
		doc.Next = inspect.Advise(doc)
		return doc
	}
	found, err := l.reader.Look(ctx, looked.Sandbox.Place(), looked.Want)
	doc.Programmed.Rules, doc.Programmed.Backend, doc.Others = shownRules(found.Lines), found.Backend, inspect.Others{Preempting: found.Preempting}
	if found.Others != nil {
		doc.Others.Owner, doc.Others.Found = found.Others.Owner, found.Others.Found
	}
	if held, holds := iptables.HeldPackets(found.Lines); holds {
		doc.Programmed.Held = &held
	}
	doc.Asked.Notes = slices.Concat(doc.Asked.Notes, found.Hints)
	doc.Agreement = agreement(looked, found, err)
	if looked.Intent.Redirect && found.Backend != "" {
		if doc.Programmed.Unheard, err = l.reader.Unheard(ctx, looked.Sandbox.Place(), looked.Intent.Spec.ProxyPorts()); err != nil {
			logr.FromContextOrDiscard(ctx).V(1).Info("the proxy's sockets not read", "reason", err.Error())
		}
	}
	doc.Next = inspect.Advise(doc)
	return doc
}

// agreement compares what should be in force with what was found.
func agreement(looked controllers.Looked, found kernel.Held, err error) inspect.Agreement {
	if err != nil {
		return inspect.Agreement{Verdict: inspect.Unknown, Error: err.Error()}
	}
	out := inspect.Agreement{Verdict: inspect.Agree, Kept: looked.Kept && found.Backend != "" || looked.Unknown && found.Backend != ""}
	switch {
	case found.Others != nil && found.Backend == "": // left to them
	case looked.Want != nil:
		for _, d := range found.Drift.Bounded() {
			out.Differences = append(out.Differences, d.Text)
		}
	case !looked.Unknown && found.Backend != "":
		out.Differences = []string{"+ rules of the " + found.Backend + " backend, which the pod's own annotations have removed"}
	}
	if len(out.Differences) > 0 {
		out.Verdict = inspect.Differ
	}
	return out
}

func reportedOn(pod *corev1.Pod) inspect.Reported {
	out := inspect.Reported{Status: pod.Annotations[podreport.KeyStatus]}
	if c := podreport.ConditionOf(pod, podreport.Condition); c != nil {
		out.Condition, out.Reason, out.Message = string(c.Status), c.Reason, c.Message
	}
	return out
}

// maxShownRules bounds a document: a pod's settings make far fewer.
const maxShownRules = 500

// shownRules returns rules for a document. Their text is bounded and printable where they are read.
func shownRules(lines []iptables.Line) []iptables.Line {
	out := slices.Concat([]iptables.Line{}, lines[:min(len(lines), maxShownRules)]) // no null for machines
	if len(lines) > maxShownRules {
		out = append(out, iptables.Line{Chain: lines[maxShownRules].Chain, Words: "more rules than are shown"})
	}
	return out
}

// askedBy says what a pod asks for, and where each value comes from.
func askedBy(looked controllers.Looked) inspect.Asked {
	in := looked.Intent
	out := inspect.Asked{
		Redirect: in.Redirect && looked.Invalid == nil, Reason: string(in.Reason), Expected: in.Asked, Settings: []intent.Setting{}, Notes: in.Notes,
	}
	if looked.Invalid != nil {
		out.Invalid = looked.Invalid.Error()
	}
	// Look has met the same error.
	found, _ := intent.Explain(looked.Pod, looked.Namespace, looked.Config)
	out.By = found.AskedBy
	if profile, err := intent.ProxyProfile(looked.Pod, looked.Namespace); err == nil && looked.Intent.Reason != intent.OptedOut {
		out.Profile = profile
	}
	if !out.Redirect {
		return out
	}
	out.Summary = in.Spec.Summary()
	for _, s := range found.Settings {
		if s.Name == "resolvers" && looked.Sandbox.Nameservers != "" {
			s.Value, s.Source = looked.Sandbox.Nameservers, "container runtime"
		}
		out.Settings = append(out.Settings, s)
	}
	return out
}
