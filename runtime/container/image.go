package container

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotPulled means that an image is not on the node and could not be pulled, with the runtime's reason.
var ErrNotPulled = errors.New("the image cannot be pulled")

// images is the image service of the node.
type images struct{ client criv1.ImageServiceClient }

// ImageID returns the ID of an image that the node has, or "": a name may lead to another image later.
func (i images) ImageID(ctx context.Context, image string) (string, error) {
	resp, err := i.client.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: image}})
	if err != nil {
		return "", fmt.Errorf("look for image %q: %w", image, err)
	}
	return resp.GetImage().GetId(), nil
}

// Pull fetches an image, with each of the credentials until one is accepted, or without. The error contains none of them.
func (i images) Pull(ctx context.Context, image string, credentials []Auth) error {
	if len(credentials) == 0 {
		credentials = []Auth{{}}
	}
	var refused error
	for _, a := range credentials {
		request := &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: image, UserSpecifiedImage: image}}
		if a != (Auth{}) {
			request.Auth = &criv1.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}
		}
		_, err := i.client.PullImage(ctx, request)
		if err == nil {
			return nil
		}
		refused = err
		if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled {
			break
		}
	}
	return fmt.Errorf("%q: %w: %s", image, ErrNotPulled, without(credentials, status.Convert(refused).Message()))
}

// without returns the runtime's text without credentials that it may repeat.
func without(credentials []Auth, text string) string {
	for _, a := range credentials {
		for _, secret := range []string{a.Password, a.IdentityToken, base64.StdEncoding.EncodeToString([]byte(a.Username + ":" + a.Password))} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "[hidden]")
			}
		}
	}
	return text
}
