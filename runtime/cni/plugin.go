// Package cni is the entrance of the CNI chain: the plugin that the container runtime starts for every sandbox, and the
// agent's end of the socket between the two.
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

	"istio-pod-network-controller/internal/podnet"
)

// codeRefused is the plugin's own error code (the specification leaves 100 and above to plugins): the agent was asked and
// said no.
const codeRefused = 100

const (
	// forgetTimeout bounds DEL, which only lets the agent forget sooner what it would find gone anyway.
	forgetTimeout = time.Second
	// checkTimeout bounds CHECK: when CRI-O starts, it asks for every sandbox of the node, one after the other.
	checkTimeout = time.Second
	// statusTimeout bounds STATUS, which runtimes ask for every few seconds.
	statusTimeout = 2 * time.Second
)

// Versions are the versions of the CNI specification that the plugin speaks.
func Versions() []string { return version.VersionsStartingFrom("0.3.1").SupportedVersions() }

// plugin is one call by the container runtime:
//
//   - ADD asks the agent to program the sandbox, and answers with the previous plugin's result as it came;
//   - CHECK has the agent repair the rules. It fails only on the agent's own no: CRI-O takes the address from a sandbox whose
//     CHECK fails, and the kubelet then kills the pod;
//   - DEL lets the agent forget the sandbox, and succeeds whatever happens;
//   - STATUS succeeds without a question, since ADD refuses by itself; with statusNeedsAgent it asks whether the agent is ready;
//   - GC has nothing to collect: rules go with their namespace.
//
// Containers that are no pods, and pods of excluded namespaces, pass without a question. The host's own network namespace does not:
// the agent knows which pods belong there, and writes nothing there.
type plugin struct {
	result []byte
	log    io.Writer
}

// Main runs the plugin on the environment and standard input that CNI prescribes, and gives the exit code.
func Main(ctx context.Context, out, log io.Writer) int {
	// skel would refuse the host's namespace after ADD was done. The agent judges it before.
	if err := os.Setenv("CNI_NETNS_OVERRIDE", "true"); err != nil {
		_, _ = fmt.Fprintln(log, err)
		return 1
	}
	p := &plugin{log: log}
	with := func(f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return f(ctx, args) }
	}
	failed := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: with(p.add), Check: with(p.check), Del: with(p.del), Status: with(p.status), GC: with(p.gc),
	}, version.PluginSupports(Versions()...), "CNI plugin istio-pod-network-cni, to be chained after the one that makes the network")
	switch {
	case failed == nil:
		if _, err := out.Write(p.result); err != nil {
			_, _ = fmt.Fprintln(log, "write result:", err)
			return 1
		}
		return 0
	case os.Getenv("CNI_COMMAND") == "DEL":
		// A pod must be able to go, whatever became of the configuration since it came.
		_, _ = fmt.Fprintln(log, "istio-pod-network-cni: DEL:", failed)
		return 0
	}
	if err := failed.Print(); err != nil {
		_, _ = fmt.Fprintln(log, "write error:", err)
	}
	return 1
}

func (p *plugin) add(ctx context.Context, args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	if conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig,
			"prevResult is missing: the plugin belongs behind the one that makes the pod's network", "")
	}
	if err := p.ask(ctx, conf, cmdAdd, args); err != nil {
		return err
	}
	p.result = conf.PrevResult
	return nil
}

func (p *plugin) check(ctx context.Context, args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return p.ask(ctx, conf, cmdCheck, args)
}

func (p *plugin) del(ctx context.Context, args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	return p.ask(ctx, conf, cmdDel, args)
}

func (p *plugin) gc(context.Context, *skel.CmdArgs) error { return nil }

func (p *plugin) status(ctx context.Context, args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil { // ADD says so
		_, _ = fmt.Fprintln(p.log, "istio-pod-network-cni: STATUS:", err)
		return nil
	}
	// Where the chain goes on without the agent, its absence is no reason to start no pods.
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

// ask has the agent do something about the sandbox, unless it is none of the agent's business.
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
	case err == nil, errors.Is(err, errAway) && command == cmdDel: // it finds out by itself
		return nil
	case errors.Is(err, errAway) && command == cmdCheck: // no evidence that anything is missing; the agent's sweep looks
		_, _ = fmt.Fprintf(p.log, "istio-pod-network-cni: CHECK of pod %s without the agent: %v\n", s.Pod(), err)
		return nil
	case errors.Is(err, errAway) && conf.FailOpen:
		_, _ = fmt.Fprintf(p.log, "istio-pod-network-cni: %s of pod %s passed without the agent, as failOpen says: %v\n", command, s.Pod(), err)
		return nil
	case errors.Is(err, errAway):
		return types.NewError(types.ErrTryAgainLater, away(s, conf), err.Error())
	}
	return types.NewError(codeRefused, fmt.Sprintf("pod %s: %v", s.Pod(), err), "")
}

// limit is how long the agent's answer may take.
func limit(command string, conf Conf) time.Duration {
	switch command {
	case cmdCheck:
		return min(conf.timeout(), checkTimeout)
	case cmdDel:
		return min(conf.timeout(), forgetTimeout)
	}
	return conf.timeout()
}

// away is what the pod's owner reads in the pod's events.
func away(s podnet.Sandbox, conf Conf) string {
	return fmt.Sprintf("pod %s waits for the istio-pod-network-controller agent of this node, which puts in its redirection rules "+
		"and did not answer at %s", s.Pod(), conf.Socket)
}
