// Package cni is the hook of the CNI chain: the plugin that the container runtime starts for each sandbox, and the agent's side
// of the socket between the two.
package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// codeRefused is the plugin's own error code (the specification reserves 100 and above for plugins): the agent has refused the
// sandbox.
const codeRefused = 100

const (
	// checkTimeout bounds CHECK, which CRI-O calls for each sandbox of the node when it starts, one after the other. It also bounds DEL,
	// which is only a hint: the agent finds out by itself that a namespace is gone.
	checkTimeout = time.Second
	// statusTimeout bounds STATUS, which runtimes call every few seconds.
	statusTimeout = 2 * time.Second
)

// Versions returns the versions of the CNI specification that the plugin supports.
func Versions() []string { return version.VersionsStartingFrom("0.3.1").SupportedVersions() }

// plugin is one call by the container runtime:
//
//   - ADD asks the agent to program the sandbox, and returns the previous plugin's result unchanged.
//   - CHECK asks the agent to repair the rules. It fails only if the agent refuses: CRI-O drops the address of a sandbox whose CHECK
//     fails, and the kubelet then kills the pod.
//   - DEL asks the agent to forget the sandbox. It always succeeds.
//   - STATUS succeeds without asking, since ADD refuses by itself. With statusNeedsAgent it asks whether the agent is ready.
//   - GC does nothing: rules go with their namespace.
//
// Containers that are not pods, and pods of excluded namespaces, pass without asking. The host's network namespace is passed on: the
// agent knows which pods belong there, and writes nothing there.
type plugin struct {
	result []byte
	log    io.Writer
}

// exitError is the exit code other than 0.
const exitError = 1 // the pod is refused, or the request cannot be understood; standard output says why, as CNI wants it

// Main runs the plugin with the environment and standard input that CNI defines, and returns the exit code.
func Main(ctx context.Context, out, log io.Writer) int {
	// Without it, skel refuses the host's namespace, but only after ADD is done. The agent checks it before.
	if err := os.Setenv("CNI_NETNS_OVERRIDE", "true"); err != nil {
		_, _ = fmt.Fprintln(log, err)
		return exitError
	}
	p := &plugin{log: log}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: p.about(ctx, cmdAdd), Check: p.about(ctx, cmdCheck), Del: p.about(ctx, cmdDel),
		Status: func(args *skel.CmdArgs) error { return p.status(ctx, args) },
		GC:     func(*skel.CmdArgs) error { return nil },
	}, version.PluginSupports(Versions()...), "CNI plugin istio-pod-network-cni, to be chained after the one that makes the network")
	switch {
	case err == nil:
		if _, err := out.Write(p.result); err != nil {
			_, _ = fmt.Fprintln(log, "write result:", err)
			return exitError
		}
		return 0
	case os.Getenv("CNI_COMMAND") == "DEL":
		// A pod can always be deleted, whatever has happened to the configuration since it was created.
		_, _ = fmt.Fprintln(log, "istio-pod-network-cni: DEL:", err)
		return 0
	}
	if err := err.Print(); err != nil {
		_, _ = fmt.Fprintln(log, "write error:", err)
	}
	return exitError
}

// about returns the function that serves a command about a sandbox.
func (p *plugin) about(ctx context.Context, command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := parseConf(args.StdinData)
		if err != nil {
			return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
		}
		if command == cmdAdd && conf.PrevResult == nil {
			return types.NewError(types.ErrInvalidNetworkConfig,
				"prevResult is missing: the plugin belongs behind the one that makes the pod's network", "")
		}
		if err := p.ask(ctx, conf, command, args); err != nil {
			return err
		}
		if command == cmdAdd {
			p.result = conf.PrevResult
		}
		return nil
	}
}

func (p *plugin) status(ctx context.Context, args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil { // ADD reports it
		_, _ = fmt.Fprintln(p.log, "istio-pod-network-cni: STATUS:", err)
		return nil
	}
	// If the chain works without the agent, its absence must not stop pods from starting.
	if !conf.StatusNeedsAgent || conf.FailOpen {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(conf.timeout(), statusTimeout))
	defer cancel()
	err = ask(ctx, conf.Socket, request{Command: cmdStatus})
	if err == nil {
		return nil
	}
	return types.NewError(types.ErrPluginNotAvailable, "the node's istio-pod-network-controller agent is not ready", err.Error())
}

// ask sends the agent a request about the sandbox, unless the sandbox is no pod's or its namespace is excluded.
func (p *plugin) ask(ctx context.Context, conf Conf, command string, args *skel.CmdArgs) error {
	s, err := sandboxOf(args.ContainerID, args.Netns, args.Args)
	if err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	if s.Name == "" || conf.Excludes(s.Namespace) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit(command, conf))
	defer cancel()
	err = ask(ctx, conf.Socket, request{Command: command, Sandbox: s})
	switch {
	case err == nil, errors.Is(err, errAway) && command == cmdDel: // the agent finds out by itself
		return nil
	case errors.Is(err, errAway) && command == cmdCheck: // nothing is known to be missing; the agent verifies the rules
		_, _ = fmt.Fprintf(p.log, "istio-pod-network-cni: CHECK of pod %s without the agent: %v\n", s.Pod(), err)
		return nil
	case errors.Is(err, errAway) && conf.FailOpen:
		_, _ = fmt.Fprintf(p.log, "istio-pod-network-cni: %s of pod %s passed without the agent, because failOpen is set: %v\n", command, s.Pod(), err)
		return nil
	case errors.Is(err, errAway): // the pod's owner reads it in the pod's events
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod %s waits for its redirection rules: the istio-pod-network-controller agent of this node "+
			"did not answer at %s", s.Pod(), conf.Socket), err.Error())
	}
	return types.NewError(codeRefused, fmt.Sprintf("pod %s: %v", s.Pod(), err), "")
}

// limit returns how long to wait for the agent's answer.
func limit(command string, conf Conf) time.Duration {
	if command == cmdCheck || command == cmdDel {
		return min(conf.timeout(), checkTimeout)
	}
	return conf.timeout()
}
