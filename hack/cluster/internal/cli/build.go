package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/debian"
	"istio-pod-network-controller/hack/cluster/internal/image"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/program"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// deps prints one line and nothing else: it is used as $(kc deps).
func (o *options) deps() *cobra.Command {
	return &cobra.Command{
		Use: "deps", Short: "Print the Debian packages that the cluster needs, for apt-get install", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(o.out, strings.Join(debian.Names(debian.Build, debian.Images, debian.Run), " "))
			return err
		},
	}
}

// build prints the directory of the programs, for scripts.
func (o *options) build() *cobra.Command {
	var choice releases
	cmd := &cobra.Command{
		Use: "build [PROGRAM...]", Short: "Build programs of the cluster, or all: some five minutes at first, nothing when they are there",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := o.buildCluster(cmd.Context(), cmd.ErrOrStderr(), choice, args...)
			if err != nil {
				return err
			}
			runtime, err := o.buildRuntime(cmd.Context(), cmd.ErrOrStderr(), choice)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(o.out, cmp.Or(runtime, dir))
			return err
		},
	}
	choice.flags(cmd)
	return cmd
}

// releases are the container runtime and the releases that a user asks for; an empty one is the pinned one.
type releases struct{ runtime, containerd, kubernetes string }

// release is a version without the leading v.
var release = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?$`)

// flags refuses what is not known before anything is built.
func (r *releases) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.runtime, "runtime", config.Containerd, "the container runtime: containerd or crio, which is built when it is asked for")
	cmd.Flags().StringVar(&r.containerd, "containerd", "", "another release of containerd, such as 1.7.35, which is built from its own module")
	r.kubernetesFlag(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case r.runtime != config.Containerd && r.runtime != config.CRIO:
			return fmt.Errorf("--runtime %q: want containerd or crio", r.runtime)
		case r.runtime == config.CRIO && r.containerd != "":
			return errors.New("--runtime crio and --containerd: choose one")
		}
		return r.check()
	}
}

func (r *releases) kubernetesFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.kubernetes, "kubernetes", "", "another release of Kubernetes, such as 1.35.4, which is built from its own module")
}

// check refuses what is no release.
func (r *releases) check() error {
	for flag, version := range map[string]string{"containerd": r.containerd, "kubernetes": r.kubernetes} {
		if version != "" && !release.MatchString(version) {
			return fmt.Errorf("--%s %q: want a release such as 1.35.4", flag, version)
		}
	}
	return nil
}

// images prints the archives, for scripts.
func (o *options) images() *cobra.Command {
	return &cobra.Command{
		Use: "images", Short: "Pack the images that every cluster holds: " + strings.Join(image.Tags(), ", "), Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := o.packImages(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			files, err := store.Files()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(o.out, strings.Join(files, "\n"))
			return err
		},
	}
}

// image makes the product's image the same way as the cluster's own ones, where no container engine is at hand.
func (o *options) image() *cobra.Command {
	var binary, output string
	var files []string
	var iptables bool
	var spec image.Spec
	cmd := &cobra.Command{
		Use: "image --binary FILE --tag NAME:TAG --output FILE.tar", Args: cobra.NoArgs,
		Short:   "Pack a static program as an image, without a container engine",
		Example: "  kc image --binary build/agent --tag example.com/agent:1 --entrypoint /agent --output build/agent.tar",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := image.CheckStatic(binary); err != nil {
				return err
			}
			if len(spec.Entrypoint) == 0 {
				spec.Entrypoint = []string{"/" + filepath.Base(binary)}
			}
			spec.Entries = []image.Entry{{Path: spec.Entrypoint[0], Source: binary}}
			for _, f := range files {
				source, target, ok := strings.Cut(f, ":")
				if !ok || !filepath.IsAbs(target) {
					return fmt.Errorf("--file %q: want SOURCE:/TARGET", f)
				}
				spec.Entries = append(spec.Entries, image.Entry{Path: target, Source: source})
			}
			if iptables {
				entries, err := image.Iptables(cmd.Context())
				if err != nil {
					return err
				}
				spec.Entries = append(spec.Entries, entries...)
			}
			return image.Write(output, spec)
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "the program, built with CGO_ENABLED=0")
	cmd.Flags().StringVar(&spec.Tag, "tag", "", "the image's name, with a tag other than latest")
	cmd.Flags().StringSliceVar(&spec.Entrypoint, "entrypoint", nil, "where the program is in the image, and arguments (default: /NAME)")
	cmd.Flags().StringVar(&spec.User, "user", "", "uid:gid that it runs as (default: root)")
	cmd.Flags().StringSliceVar(&files, "file", nil, "one more file or directory, SOURCE:/TARGET; may be repeated")
	cmd.Flags().BoolVar(&iptables, "iptables", false, "add the machine's iptables of both flavours, with its libraries and extensions")
	cmd.Flags().StringVarP(&output, "output", "o", "", "the archive to write")
	for _, name := range []string{"binary", "tag", "output"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			cmd.RunE = func(*cobra.Command, []string) error { return err }
		}
	}
	return cmd
}

// buildPrograms builds the named programs, or all.
func (o *options) buildPrograms(ctx context.Context, progress io.Writer, names ...string) (program.Set, error) {
	l, unlock, err := o.forBuilding()
	if err != nil {
		return program.Set{}, err
	}
	defer unlock()
	set, err := program.Open(ctx, l)
	if err != nil {
		return program.Set{}, err
	}
	return set, o.fill(ctx, set, progress, names...)
}

// buildCluster returns the directory of the named programs, or of all, with those of Kubernetes of the release that is asked for.
func (o *options) buildCluster(ctx context.Context, progress io.Writer, r releases, names ...string) (string, error) {
	if r.kubernetes == "" {
		set, err := o.buildPrograms(ctx, progress, names...)
		return set.Dir, err
	}
	set, err := o.buildPrograms(ctx, progress, program.BesideKubernetes()...)
	if err != nil {
		return "", err
	}
	other, err := o.buildRelease(ctx, progress, program.Kubernetes(r.kubernetes), names...)
	if err != nil {
		return "", err
	}
	return other.Dir, other.Borrow(set.Dir)
}

// buildRuntime returns the directory of a runtime's programs, or "" if they are among the cluster's.
func (o *options) buildRuntime(ctx context.Context, progress io.Writer, r releases) (string, error) {
	release := program.Containerd(r.containerd)
	switch {
	case r.runtime == config.CRIO:
		release = program.CRIO()
	case r.containerd == "":
		return "", nil
	}
	set, err := o.buildRelease(ctx, progress, release)
	return set.Dir, err
}

// buildRelease builds the named programs of a release, or all.
func (o *options) buildRelease(ctx context.Context, progress io.Writer, release program.Release, names ...string) (program.Set, error) {
	l, unlock, err := o.forBuilding()
	if err != nil {
		return program.Set{}, err
	}
	defer unlock()
	set, err := program.OpenRelease(ctx, l, release)
	if err != nil {
		return program.Set{}, err
	}
	return set, o.fill(ctx, set, progress, names...)
}

// fill builds what is missing of a set. It asks for a compiler's packages only when there is something for cgo to compile.
func (o *options) fill(ctx context.Context, set program.Set, progress io.Writer, names ...string) error {
	missing, err := set.Missing(names...)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(missing, func(r program.Recipe) bool { return r.Cgo }) {
		if err := debian.Check(debian.Build); err != nil {
			return err
		}
	}
	return set.Build(ctx, missing, progress)
}

// packImages wants the packages even when the images are there: their files are part of the images' key.
func (o *options) packImages(ctx context.Context, progress io.Writer) (image.Store, error) {
	l, unlock, err := o.forBuilding()
	if err != nil {
		return image.Store{}, err
	}
	defer unlock()
	if err := debian.Check(debian.Images); err != nil {
		return image.Store{}, err
	}
	store, err := image.OpenStore(l)
	if err != nil {
		return image.Store{}, err
	}
	return store, store.Make(ctx, progress)
}

// forBuilding keeps two builds from writing the same files.
func (o *options) forBuilding() (layout.Layout, func(), error) {
	l, err := layout.New(o.source, o.cache, o.name)
	if err != nil {
		return layout.Layout{}, nil, err
	}
	unlock, err := state.Lock(filepath.Join(l.Cache, "build.lock"))
	if err != nil {
		return layout.Layout{}, nil, errors.Join(errors.New("building"), err)
	}
	return l, unlock, nil
}
