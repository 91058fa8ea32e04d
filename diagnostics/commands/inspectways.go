package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// Bounds of the ways to the agent, of which there are three. An address behind a firewall does not answer at all.
const (
	wayTimeout = inspectTimeout/3 - time.Second
	directDial = 2 * time.Second
)

// maxSaid bounds what is kept of the standard error of a command in the agent's container.
const maxSaid = 1 << 14

// inspectWays asks one agent.
type inspectWays struct {
	client connection
	pod    *corev1.Pod // about which it is asked
	agent  cluster.Agent
	token  string // of --agent-token
}

// described asks the agent, and adds what the caller may read by himself.
func (w *inspectWays) described(ctx context.Context, via string) (inspect.Document, error) {
	doc, err := w.ask(ctx, via)
	if err == nil && doc.Programmed.Absent != "" { // of a pod that goes, the sandbox goes first
		if why := w.gone(ctx); why != "" {
			return doc, errors.New(why)
		}
	}
	if err != nil {
		return doc, w.orGone(ctx, err)
	}
	doc.Events = eventsOf(ctx, w.client, w.pod)
	for i := range doc.Next { // the agent does not know its own name
		doc.Next[i] = strings.NewReplacer(inspect.AgentNamespace, w.agent.Namespace, inspect.AgentPod, w.agent.Name).Replace(doc.Next[i])
	}
	doc.AddMistyped(misplacedKeys(ctx, w.client, w.pod))
	if s := w.agent.Status; s != nil {
		doc.Next = append(doc.Next, otherRelease(cmdline.Build().Comparable(), s.Version)...)
	}
	return doc, nil
}

// otherRelease says that the agent is of another release than this program. Either is "" if it is not known.
func otherRelease(own, agent string) []string {
	if own == "" || agent == "" || own == agent {
		return nil
	}
	return []string{fmt.Sprintf("this command is release %s and the agent %s: where they say different things, use the agent's release", own, agent)}
}

// ask asks by each way until the agent answers. A refusal by the agent is an answer.
func (w *inspectWays) ask(ctx context.Context, via string) (doc inspect.Document, err error) {
	within := func(get func(ctx context.Context) (inspect.Document, error)) (err error) {
		ctx, cancel := context.WithTimeout(ctx, wayTimeout)
		defer cancel()
		doc, err = get(ctx)
		if _, refused := errors.AsType[*inspect.Refusal](err); err != nil && !refused {
			return notBegunError{err}
		}
		return err
	}
	err = w.each(via, func() error { return within(w.byExec) }, func(c inspect.Client) error {
		return within(func(ctx context.Context) (inspect.Document, error) { return c.Get(ctx, w.pod.Namespace, w.pod.Name) })
	})
	return doc, err
}

// each asks by each way until one does not fail by a notBegunError, and returns how that one ends, or else why each way fails.
func (w *inspectWays) each(via string, byExec func() error, byNetwork func(inspect.Client) error) error {
	ways := []string{via}
	if via == viaAuto { // the first needs no port of the node, and shows nobody a token
		ways = []string{viaExec, viaDirect, viaTunnel}
	}
	var errs []error
	for _, way := range ways {
		ask := byExec
		if way != viaExec {
			if err := w.prepare(); err != nil {
				errs = append(errs, err)
				break // the ways that follow are over the network, too
			}
			ask = func() error { return byNetwork(w.byNetwork(way)) }
		}
		err := ask()
		if _, notBegun := errors.AsType[notBegunError](err); !notBegun {
			return err
		}
		errs = append(errs, fmt.Errorf("%s: %w", way, err))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("the agent %s/%s of node %s cannot be asked:\n%w", w.agent.Namespace, w.agent.Name, w.agent.Node, errors.Join(errs...))
}

// about names the pod that is asked about.
func (w *inspectWays) about() string { return w.pod.Namespace + "/" + w.pod.Name }

// prepare sees to what both ways over the network need: an agent that says where it answers, and a token.
func (w *inspectWays) prepare() (err error) {
	switch a := w.agent; {
	case a.Fault != "":
		return fmt.Errorf("agent %s/%s is of another release: %s", a.Namespace, a.Name, a.Fault)
	case a.Status == nil:
		return fmt.Errorf("agent %s/%s says nothing about itself: it is of a release before inspect, or has just started", a.Namespace, a.Name)
	case a.Status.Inspect == nil:
		return fmt.Errorf("agent %s/%s (%s) does not answer callers on the network: to switch that on, set the chart's inspect.enabled=true "+
			"(if it is, its ports are taken: see the agent's log)", a.Namespace, a.Name, a.Status.Version)
	}
	if w.token == "" {
		w.token, err = inspect.Token(w.client.config)
	}
	return err
}

// byNetwork returns a client of the agent by one of the ways over the network.
func (w *inspectWays) byNetwork(way string) inspect.Client {
	dial := w.direct
	if way == viaTunnel {
		dial = w.tunnel
	}
	return inspect.Client{Certificate: w.agent.Status.Inspect.Certificate, Token: w.token, Dial: dial}
}

func (w *inspectWays) direct(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: directDial}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(w.agent.Pod.Status.PodIP, strconv.Itoa(w.agent.Status.Inspect.Port)))
	if err != nil {
		return nil, notBegunError{fmt.Errorf("the agent's node cannot be reached from here: %w", err)}
	}
	return conn, nil
}

func (w *inspectWays) tunnel(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx) // which the tunnel outlives
	late := time.AfterFunc(wayTimeout, cancel)
	defer late.Stop()
	conn, err := inspect.Tunnel(ctx, w.client.config, w.agent.Namespace, w.agent.Name, w.agent.Status.Inspect.Port)
	switch {
	case apierrors.IsForbidden(err):
		return nil, notBegunError{fmt.Errorf("this takes the right to get pods/proxy in namespace %s (role %s-inspect-tunnel of the chart)", w.agent.Namespace, agentstatus.Name)}
	case err != nil:
		return nil, notBegunError{fmt.Errorf("reach the agent through the API server: %w", err)}
	}
	return conn, nil
}

// byExec runs `inspect --local` in the agent's container. The command's exit status says what the document says, too.
func (w *inspectWays) byExec(ctx context.Context) (doc inspect.Document, err error) {
	args := []string{"inspect", "--local", "-o", "json", w.about()}
	if socket, ok := strings.CutPrefix(w.argument("health-addr"), "unix://"); ok {
		args = append(args, "--socket", path.Join(path.Dir(socket), path.Base(inspect.DefaultSocket)))
	}
	out, said := inspect.Clipped{Most: inspect.MaxAnswer}, inspect.Clipped{Most: maxSaid}
	_, err = w.run(ctx, args, remotecommand.StreamOptions{Stdout: &out, Stderr: &said})
	if err != nil { // a command that was given up may still write
		return doc, err
	}
	switch errOut := strings.TrimSpace(string(said.Text)); {
	case out.Cut:
		return doc, errors.New("the command in the agent's container: the answer is too long")
	case len(out.Text) > 0:
		return inspect.ParseDocument(out.Text)
	case strings.Contains(errOut, "unknown command"):
		return doc, fmt.Errorf("agent %s/%s is of a release that has no inspect: %s", w.agent.Namespace, w.agent.Name, errOut)
	case errOut == "" || strings.Contains(errOut, unansweredLocally):
		return doc, fmt.Errorf("the command in the agent's container: %s", cmp.Or(strings.TrimPrefix(errOut, "error: "), "it printed nothing"))
	default:
		return doc, &inspect.Refusal{Code: http.StatusInternalServerError, Message: strings.TrimPrefix(errOut, "error: ")}
	}
}

// notBegunError means that the agent does not know of the question, so that it can be asked another way.
type notBegunError struct{ error }

func (e notBegunError) Unwrap() error { return e.error }

// run runs the agent's program in its container, and returns its exit status.
func (w *inspectWays) run(ctx context.Context, args []string, streams remotecommand.StreamOptions) (code int, err error) {
	err = w.stream(ctx, append([]string{"/" + agentstatus.Name}, args...), streams)
	var ended exec.CodeExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &ended):
		return ended.Code, nil
	case strings.Contains(err.Error(), "forbidden"): // of the API server's answer client-go leaves only the text
		return 0, notBegunError{fmt.Errorf("this takes the right to create pods/exec in namespace %s, which is as good as root on the nodes", w.agent.Namespace)}
	case strings.Contains(err.Error(), "unable to upgrade connection"):
		return 0, notBegunError{fmt.Errorf("run a command in the agent's container: %w", err)}
	}
	return 0, fmt.Errorf("run a command in the agent's container: %w", err)
}

// stream runs a command in the agent's container, over WebSockets, or SPDY with API servers and proxies that know no other way.
func (w *inspectWays) stream(ctx context.Context, command []string, streams remotecommand.StreamOptions) error {
	options := &corev1.PodExecOptions{Container: agentstatus.Container, Command: command, Stdout: true, Stderr: true}
	at := w.client.CoreV1().RESTClient().Post().Namespace(w.agent.Namespace).Resource("pods").Name(w.agent.Name).SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(w.client.config, "GET", at.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(w.client.config, "POST", at)
	if err != nil {
		return err
	}
	// A command that has run is not run again.
	notBegun := func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) }
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, notBegun)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- executor.StreamWithContext(ctx, streams) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // until a WebSocket is open, the executor does not look at it
		return ctx.Err()
	}
}

// argument returns the value of a flag in the agent's pod, or "".
func (w *inspectWays) argument(flag string) string {
	return cluster.Flag(cluster.Container(&w.agent.Pod.Spec), flag)
}
