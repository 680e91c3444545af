module github.com/signalbox-dev/signalbox/test/prose

go 1.26

require github.com/yuin/goldmark v1.8.7
