# The manager's image: one static program, built for every platform on the builder's own. Both bases are given by whoever
# builds (make image says how), so that they can be pinned by digest and come from where you trust.
ARG GO_IMAGE=golang:1.26
ARG BASE_IMAGE
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY admission admission
COPY api api
COPY audit audit
COPY cmd cmd
COPY events events
COPY integration integration
COPY overrides overrides
COPY podsets podsets
COPY review review
COPY store store
COPY trainer trainer
ARG TARGETOS TARGETARCH VERSION=development COMMIT= DATE=
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT} -X main.date=${DATE}" -o /signalbox ./cmd/signalbox

FROM ${BASE_IMAGE}
COPY --from=build /signalbox /signalbox
USER 65532:65532
ENTRYPOINT ["/signalbox"]
