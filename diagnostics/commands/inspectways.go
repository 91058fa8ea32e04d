package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
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
)

// Bounds of the ways to the agent. An address behind a firewall does not answer at all.
const (
	directTimeout = 8 * time.Second
	directDial    = 2 * time.Second
	otherTimeout  = 10 * time.Second
)

// inspectWays asks one agent.
type inspectWays struct {
	client connection
	agent  cluster.Agent
	token  string // of --agent-token
}

// ask asks one way, or each in turn until the agent answers. A refusal by the agent is an answer.
func (w inspectWays) ask(ctx context.Context, via, namespace, name string) (inspect.Document, error) {
	ways := []string{viaDirect, viaTunnel, viaExec}
	if via != viaAuto {
		ways = []string{via}
	}
	var errs []error
	if ways[0] != viaExec {
		if err := w.prepare(); err != nil {
			errs = append(errs, err)
			ways = slices.DeleteFunc(ways, func(way string) bool { return way != viaExec })
		}
	}
	for _, way := range ways {
		doc, err := w.one(ctx, way, namespace, name)
		var refusal *inspect.Refusal
		switch {
		case err == nil:
			return doc, nil
		case errors.As(err, &refusal):
			return doc, refusal
		}
		errs = append(errs, fmt.Errorf("%s: %w", way, err))
	}
	err := errors.Join(errs...)
	if len(errs) == 1 {
		return inspect.Document{}, err
	}
	return inspect.Document{}, fmt.Errorf("the agent %s/%s of node %s cannot be asked:\n%w", w.agent.Namespace, w.agent.Name, w.agent.Node, err)
}

func (w inspectWays) one(ctx context.Context, way, namespace, name string) (inspect.Document, error) {
	limit := otherTimeout
	if way == viaDirect {
		limit = directTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch way {
	case viaDirect:
		return w.byNetwork(ctx, w.direct(), namespace, name)
	case viaTunnel:
		return w.byNetwork(ctx, w.tunnel(), namespace, name)
	}
	return w.byExec(ctx, namespace, name)
}

type dial func(context.Context) (net.Conn, error)

// prepare sees to what both ways over the network need: an agent that says where it answers, and a token.
func (w *inspectWays) prepare() (err error) {
	switch a := w.agent; {
	case a.Fault != "":
		return fmt.Errorf("agent %s/%s is of another release: %s", a.Namespace, a.Name, a.Fault)
	case a.Status == nil:
		return fmt.Errorf("agent %s/%s says nothing about itself: it is of a release before inspect, or has just started", a.Namespace, a.Name)
	case a.Status.Inspect == nil:
		return fmt.Errorf("agent %s/%s (%s) does not answer callers on the network: the chart's inspect.enabled is false, or its ports were taken (its log says so)",
			a.Namespace, a.Name, a.Status.Version)
	}
	if w.token == "" {
		w.token, err = inspect.Token(w.client.config)
	}
	return err
}

func (w inspectWays) byNetwork(ctx context.Context, dial dial, namespace, name string) (inspect.Document, error) {
	client := inspect.Client{Certificate: w.agent.Status.Inspect.Certificate, Token: w.token, Dial: dial}
	return client.Get(ctx, namespace, name)
}

func (w inspectWays) direct() dial {
	return func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, directDial)
		defer cancel()
		conn, err := inspect.Direct(w.agent.Pod.Status.PodIP, w.agent.Status.Inspect.Port)(ctx)
		if err != nil {
			return nil, fmt.Errorf("the agent's node cannot be reached from here: %w", err)
		}
		return conn, nil
	}
}

func (w inspectWays) tunnel() dial {
	return func(ctx context.Context) (net.Conn, error) {
		pod := w.agent.Pod
		conn, err := inspect.Tunnel(w.client.config, pod.Namespace, pod.Name, w.agent.Status.Inspect.Port)(ctx)
		switch {
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("this takes the right to get pods/proxy in namespace %s (role %s-inspect-tunnel of the chart)", pod.Namespace, agentstatus.Name)
		case err != nil:
			return nil, fmt.Errorf("reach the agent through the API server: %w", err)
		}
		return conn, nil
	}
}

// byExec runs `inspect --local` in the agent's container. The command's exit status says what the document says, too.
func (w inspectWays) byExec(ctx context.Context, namespace, name string) (doc inspect.Document, err error) {
	pod := w.agent.Pod
	command := []string{"/" + agentstatus.Name, "inspect", "--local", "-o", "json", namespace + "/" + name}
	if socket := inspectSocketOf(pod); socket != "" {
		command = append(command, "--socket", socket)
	}
	out, errOut, err := w.run(ctx, command)
	var ended exec.CodeExitError
	switch {
	case err != nil && strings.Contains(err.Error(), "forbidden"): // of the API server's answer client-go leaves only the text
		return doc, fmt.Errorf("this takes the right to create pods/exec in namespace %s, which is as good as root on the nodes", pod.Namespace)
	case err != nil && !errors.As(err, &ended):
		return doc, fmt.Errorf("run a command in the agent's container: %w", err)
	case len(out) == 0 && strings.Contains(errOut, "unknown command"):
		return doc, fmt.Errorf("agent %s/%s is of a release that has no inspect: %s", pod.Namespace, pod.Name, strings.TrimSpace(errOut))
	case len(out) == 0:
		return doc, fmt.Errorf("the command in the agent's container: %s", strings.TrimPrefix(strings.TrimSpace(errOut), "error: "))
	}
	return inspect.ParseDocument(out)
}

// run runs a command in the agent's container, over WebSockets, or SPDY with API servers and proxies that know no other way.
func (w inspectWays) run(ctx context.Context, command []string) (out []byte, errOut string, err error) {
	options := &corev1.PodExecOptions{Container: agentstatus.Container, Command: command, Stdout: true, Stderr: true}
	at := w.client.CoreV1().RESTClient().Post().Namespace(w.agent.Namespace).Resource("pods").Name(w.agent.Name).SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(w.client.config, "GET", at.String())
	if err != nil {
		return nil, "", err
	}
	spdy, err := remotecommand.NewSPDYExecutor(w.client.config, "POST", at)
	if err != nil {
		return nil, "", err
	}
	var stdout, stderr bytes.Buffer
	notBegun := func(err error) bool { // a command that has run is not run again
		return (httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)) && stdout.Len() == 0 && stderr.Len() == 0
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, notBegun)
	if err != nil {
		return nil, "", err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdout: &bounded{to: &stdout, left: inspect.MaxAnswer}, Stderr: &bounded{to: &stderr, left: 1 << 14},
	})
	return stdout.Bytes(), stderr.String(), err
}

// bounded takes no more than left bytes.
type bounded struct {
	to   *bytes.Buffer
	left int
}

// Write returns an error for what is too much.
func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errors.New("the answer is too long")
	}
	b.left -= len(p)
	return b.to.Write(p)
}

// inspectSocketOf returns the agent's socket, beside its health checks' socket, or "" for the default.
func inspectSocketOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, arg := range c.Args {
			if socket, ok := strings.CutPrefix(arg, "--health-addr=unix://"); ok {
				return path.Join(path.Dir(socket), path.Base(inspect.DefaultSocket))
			}
		}
	}
	return ""
}
