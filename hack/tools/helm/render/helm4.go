package render

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	v1 "helm.sh/helm/v4/pkg/release/v1"
)

type helm4 struct{}

func (helm4) Render(ctx context.Context, request Request) (Release, error) {
	chart, err := loader.Load(request.Chart)
	if err != nil {
		return Release{}, err
	}
	client := action.NewInstall(action.NewConfiguration())
	client.DryRunStrategy, client.APIVersions = action.DryRunClient, request.Kinds
	client.ReleaseName, client.Namespace = Name, Name
	client.KubeVersion = &common.KubeVersion{Version: cmp.Or(request.Version, "v1.37.0"), Major: "1", Minor: "37"}
	rel, err := client.RunWithContext(ctx, chart, request.Values)
	if err != nil {
		return Release{}, err
	}
	made, ok := rel.(*v1.Release)
	if !ok {
		return Release{}, fmt.Errorf("release is a %T", rel)
	}
	release := Release{Manifest: normal(made.Manifest), Notes: strings.TrimSpace(made.Info.Notes)}
	for _, h := range made.Hooks {
		release.Hooks = append(release.Hooks, Hook{strings.TrimSpace(h.Manifest), h.Weight, fmt.Sprint(h.Events, h.DeletePolicies)})
	}
	return release, nil
}

func (helm4) Definitions(dir string, values map[string]any) (map[string]string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	if err := util.ProcessDependencies(chart, values); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, crd := range chart.CRDObjects() {
		found[crd.Filename] = string(crd.File.Data)
	}
	return found, nil
}

func (helm4) Lint(chart string, values map[string]any) (faults []error) {
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, "lint"
	for _, message := range lint.Run([]string{chart}, values).Messages {
		if message.Severity >= support.WarningSev {
			faults = append(faults, message)
		}
	}
	return faults
}
