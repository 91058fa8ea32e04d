// Command kubectl-pod_network is the operators' commands as a plugin of kubectl, which runs it for `kubectl pod-network`. It links nothing that
// touches a kernel, and is built for other systems, too. A module of its own keeps what ConfigFlags needs out of the agent's.
package main

import (
	"io"
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs with an auth-provider

	"istio-pod-network-controller/diagnostics/commands"
	"istio-pod-network-controller/internal/cmdline"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errOut io.Writer) int {
	root := cmdline.Root("kubectl-pod_network")
	root.Short = "Shows how the redirection of service mesh pods stands"
	root.Long = "Commands that show how the agents of istio-pod-network-controller and the pods of a cluster stand, and why."
	root.AddCommand(commands.Program{Kubeconfig: configFlags}.Commands()...)
	cmdline.Rename(root, "kubectl pod-network")
	return cmdline.Run(root, args, in, out, errOut)
}

// configFlags returns kubectl's own flags.
func configFlags() commands.Kubeconfig {
	flags := genericclioptions.NewConfigFlags(true)
	flags.CacheDir = nil // no command keeps anything
	return flags
}
