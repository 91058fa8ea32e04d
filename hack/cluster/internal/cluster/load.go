package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/image"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// Load puts an image archive into the container runtime of every node.
func (c *Cluster) Load(ctx context.Context, s *state.State, archive string) error {
	for _, h := range s.Nodes {
		if err := load(ctx, s, h, archive); err != nil {
			return err
		}
	}
	return nil
}

// load puts an image archive into one node's container runtime.
func load(ctx context.Context, s *state.State, h state.Holder, archive string) error {
	argv, err := loader(s, archive)
	if err != nil {
		return fmt.Errorf("load %s: %w", filepath.Base(archive), err)
	}
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open the image: %w", err)
	}
	defer file.Close()
	// Through its standard input, because the node may have another directory under the archive's path.
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin = Environ(s), file
	var out []byte
	err = space.Do(h.PID, space.Node, func() error {
		var err error
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n") // warnings come first
		return fmt.Errorf("load %s: %w: %s", filepath.Base(archive), err, lines[len(lines)-1])
	}
	return nil
}

// loader is the command that reads an archive from its standard input.
func loader(s *state.State, archive string) ([]string, error) {
	if s.Runtime == config.Containerd {
		return []string{filepath.Join(cmp.Or(s.RuntimePrograms, s.Programs), "ctr"), "--namespace=k8s.io", "images", "import", "--local", "-"}, nil
	}
	name, err := image.NameIn(archive)
	// The options are those of crio.conf.
	return []string{
		filepath.Join(s.RuntimePrograms, "copyimg"), "--root=/var/lib/containers/storage", "--runroot=/run/containers/storage", "--storage-driver=overlay",
		"--storage-opt=overlay.skip_mount_home=true", "--signature-policy=/etc/containers/policy.json", "--image-name=" + name, "--import-from=docker-archive:/dev/stdin",
	}, err
}

// loadAll loads one image after the other: in parallel they would only slow the API server's start down.
func (r *run) loadAll(ctx context.Context, n Node) error {
	for _, archive := range r.parts.Images {
		if err := load(ctx, r.state, *n.Holder, archive); err != nil {
			return err
		}
	}
	return nil
}
